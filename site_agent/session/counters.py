"""The counters of an agent, kept with and without a metrics endpoint."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Counters:
    """Counters that any thread can increase and read.

    ``seconds`` and ``times`` by part: "plan" (reading, factoring, checking), "question" (computing an answer and recording
    it), "end" (writing the models). ``bytes`` by direction.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    times: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    refusals: int = 0

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time of a block to that part, also if the block raises."""
        since = time.perf_counter()
        try:
            yield
        finally:
            self.times[part] += 1
            self.seconds[part] += time.perf_counter() - since
