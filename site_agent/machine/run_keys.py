"""The keys of one attempt as interfaces; `site_agent.identity.run_keys` implements them.

`PlaintextSeal` replaces them for a plan without masks: the log is the same, and the coordinator can read it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from coreg_core.errors import Refused
from coreg_core.protocol.messages import Offer
from coreg_core.protocol.plan import Plan
from coreg_core.secure.sums import Words

_NO_KEYS = 'aggregation = "plaintext" has no keys: what is for some sites only cannot be sealed.'


def canonical(*about: Any) -> bytes:
    """An injective encoding of names, numbers and texts: different values have different bytes."""
    return json.dumps(about, separators=(",", ":"), sort_keys=True).encode()


def transcript_of(plan: Plan, roster: Iterable[Offer]) -> bytes:
    """T: the digest of plan and roster. Keys, masks and the log are bound to it."""
    return hashlib.sha256(canonical("coreg attempt 1", plan.run, plan.digest, *map(asdict, roster))).digest()


class Seal(Protocol):
    """The keys that all members of an attempt share. They exist in memory only."""

    tag_words: int  # that a masked row is longer than its words

    def mask(self, context: bytes, words: Words, answering: tuple[str, ...]) -> Words:
        """The masked words of this site's answer; once for each context.

        Raises
        ------
        AssertionError
            the context was used before.
        """
        ...

    def open(self, context: bytes, words: Words, n_words: int, answering: tuple[str, ...]) -> Words:
        """The opened sum of these sites' words.

        Raises
        ------
        BadData
            some site answered another step, or the sum was changed.
        """
        ...

    def close(self, context: bytes, text: bytes, receiver: str = "") -> bytes:
        """A text for one other site, or for all members (""); once for each context and receiver."""
        ...

    def open_text(self, context: bytes, sealed: bytes, sender: str, *, to_all: bool) -> bytes:
        """A text that another site sealed for this one, or for all members.

        Raises
        ------
        BadData
            it was changed, or the sites heard different things before.
        """
        ...

    def blind(self, context: bytes, words: Words, senders: tuple[str, ...], receiver: str) -> Words:
        """Words for one receiver, blinded so that only the sum over all senders can be read."""
        ...

    @property
    def members_key(self) -> bytes:
        """A key that the members of the attempt share, for their own use."""
        ...


class Secrets(Protocol):
    """This site's own secrets of one attempt."""

    @property
    def offer(self) -> Offer:
        """The signed public part."""
        ...

    def wrap(self, roster: tuple[Offer, ...], transcript: bytes) -> dict[str, str]:
        """This site's contribution to the key, sealed for each other site; ``transcript`` is that of plan and roster.

        Raises
        ------
        Refused
            a peer's key is not confirmed here, or did not sign the peer's offer.
        """
        ...

    def unwrap(self, wrapped: Mapping[str, str]) -> Seal:
        """The attempt's keys, from the contributions of all members.

        Raises
        ------
        Refused
            a contribution is missing or cannot be opened; names the site.
        """
        ...


class Keys(Protocol):
    """Makes secrets; each call draws new ones."""

    def draw(self, offer: Offer) -> Secrets:
        """Secrets for this offer, whose fields of keys and signature are still empty."""
        ...


class PlaintextSeal:
    """No keys: sums in plaintext."""

    members_key, tag_words = b"", 0

    def mask(self, context: bytes, words: Words, answering: tuple[str, ...]) -> Words:  # noqa: ARG002
        return words

    def open(self, context: bytes, words: Words, n_words: int, answering: tuple[str, ...]) -> Words:  # noqa: ARG002
        return words

    def close(self, context: bytes, text: bytes, receiver: str = "") -> bytes:  # noqa: ARG002
        raise Refused(_NO_KEYS)

    def open_text(self, context: bytes, sealed: bytes, sender: str, *, to_all: bool) -> bytes:  # noqa: ARG002
        raise Refused(_NO_KEYS)

    def blind(self, context: bytes, words: Words, senders: tuple[str, ...], receiver: str) -> Words:  # noqa: ARG002
        raise Refused(_NO_KEYS)
