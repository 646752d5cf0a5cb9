"""What an agent that stays counts while it works: plain numbers, whether or not anybody reads them."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counted on the event loop; read from any thread.

    ``seconds`` and ``times`` by part: "plan" (reading, factoring, checking), "question" (computing an answer and writing it
    down), "end" (the run's models). ``bytes`` by direction, of frames.
    """

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    times: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    refusals: int = 0

    @contextmanager
    def spending(self, part: str) -> Iterator[None]:
        """What is done in it counts under that part, however it ends."""
        since = time.perf_counter()
        try:
            yield
        finally:
            self.times[part] += 1
            self.seconds[part] += time.perf_counter() - since
