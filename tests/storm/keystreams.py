"""Watches that no site seals two plaintexts with one keystream: their difference would be readable."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from site_agent.identity.run_keys import AttemptSeal


@contextmanager
def keystreams_watched(broken: list[str]) -> Iterator[None]:
    """Add a sentence to ``broken`` for each mask of a site, an attempt and a step that was used for other words."""
    real, seen = AttemptSeal.mask, dict[tuple[str, bytes, bytes], bytes]()

    def mask(self: AttemptSeal, context: bytes, words: Any, *rest: Any, **private: Any) -> Any:
        plain = words.tobytes()
        if seen.setdefault((self.site, self.transcript, context), plain) != plain:
            broken.append(f"{self.site} sealed two plaintexts with one keystream")
        return real(self, context, words, *rest, **private)

    AttemptSeal.mask = mask  # type: ignore[method-assign]
    try:
        yield
    finally:
        AttemptSeal.mask = real  # type: ignore[method-assign]
