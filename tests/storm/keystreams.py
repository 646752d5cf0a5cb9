"""Watches that no site seals two plaintexts with one keystream: their difference would be readable."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from site_agent.identity.run_keys import AttemptSeal


@contextmanager
def keystreams_watched(broken: list[str]) -> Iterator[None]:
    """Add a sentence to ``broken`` for each keystream of a site, an attempt and a step that was used for another plaintext."""
    real = AttemptSeal.mask, AttemptSeal.close, AttemptSeal.blind
    seen = dict[tuple[Any, ...], bytes]()

    def see(seal: AttemptSeal, plain: bytes, *use: Any) -> None:
        if seen.setdefault((seal.site, seal.key, *use), plain) != plain:
            broken.append(f"{seal.site} sealed two plaintexts with one keystream ({use[0]})")

    def mask(self: AttemptSeal, context: bytes, words: Any, answering: tuple[str, ...]) -> Any:
        see(self, words.tobytes(), "mask", context)
        return real[0](self, context, words, answering)

    def close(self: AttemptSeal, context: bytes, text: bytes, receiver: str = "") -> bytes:
        see(self, text, "text", context, receiver)
        return real[1](self, context, text, receiver)

    def blind(self: AttemptSeal, context: bytes, words: Any, senders: tuple[str, ...], receiver: str) -> Any:
        see(self, words.tobytes(), "blind", context, receiver)
        return real[2](self, context, words, senders, receiver)

    AttemptSeal.mask, AttemptSeal.close, AttemptSeal.blind = mask, close, blind  # type: ignore[method-assign]
    try:
        yield
    finally:
        AttemptSeal.mask, AttemptSeal.close, AttemptSeal.blind = real  # type: ignore[method-assign]
