"""What a run needs of keys, and what there is without them.

`site_agent.identity.run_keys` makes the real ones. They exist in memory only, for one attempt.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from coreg_core.errors import BadData, Refused
from coreg_core.messages import Offer
from site_agent.machine.objective import Row


class Seal(Protocol):
    """The keys that all members of an attempt share. They exist in memory only."""

    tag_words: int  # that a masked row is longer than its words

    def mask(self, context: bytes, words: Row, answering: tuple[str, ...]) -> Row:
        """The masked words of this site's answer; once for each context."""

    def open(self, context: bytes, words: Row, n_words: int, answering: tuple[str, ...]) -> Row:
        """The opened sum of these sites' words."""

    def close(self, context: bytes, text: bytes, receiver: str = "") -> bytes:
        """A text for one other site, or for all members (""); once for each receiver."""

    def open_text(self, context: bytes, sealed: bytes, sender: str, *, to_all: bool) -> bytes:
        """A text that another site sealed for this one, or for all members."""

    def blind(self, context: bytes, words: Row, senders: tuple[str, ...], receiver: str) -> Row:
        """Words for one receiver, who can read only the sum over all senders."""

    @property
    def members_key(self) -> bytes:
        """A key that the members of the attempt share, for their own use."""


class Secrets(Protocol):
    """This site's own secrets of one attempt."""

    @property
    def offer(self) -> Offer:
        """The signed public part."""

    def wrap(self, roster: tuple[Offer, ...], transcript: bytes) -> dict[str, bytes]:
        """This site's contribution to the key, sealed for each other site."""

    def unwrap(self, wrapped: Mapping[str, bytes]) -> Seal:
        """The attempt's keys, from the contributions of all members."""


class Keys(Protocol):
    """Makes secrets; each call draws new ones."""

    def draw(self, offer: Offer) -> Secrets:
        """Secrets for this offer, whose fields of keys and signature are still empty."""


class PlaintextSeal:
    """No keys: sums in plaintext."""

    members_key = b""
    tag_words = 0

    def mask(self, context: bytes, words: Row, answering: tuple[str, ...]) -> Row:  # noqa: ARG002
        return words

    def open(
        self,
        context: bytes,  # noqa: ARG002
        words: Row,
        n_words: int,
        answering: tuple[str, ...],  # noqa: ARG002
    ) -> Row:
        if len(words) != n_words:
            raise BadData(f"the sum of this step has {len(words)} words, not {n_words}.")
        return words

    def _no_keys(self, *_args: Any, **_options: Any) -> Any:
        raise Refused('aggregation = "plaintext" has no keys, so nothing is for some sites only.')

    close = open_text = blind = _no_keys
