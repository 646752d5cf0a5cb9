"""The keys of one attempt, as the machine sees them: who holds them is somebody else (`site_agent.identity.run_keys`).

`PlaintextSeal` stands for them where a plan has no secrets: the same log, and everybody can read it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from coreg_core.masking.words import Words
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Offer
from coreg_core.protocol.plan import Plan


def canonical(*about: Any) -> bytes:
    """One encoding of names, numbers and texts; no two differ and encode alike."""
    return json.dumps(about, separators=(",", ":"), sort_keys=True).encode()


def transcript_of(plan: Plan, roster: Iterable[Offer]) -> bytes:
    """T: what everybody means by this attempt. Keys, masks and the log are bound to it."""
    return hashlib.sha256(canonical("coreg attempt 1", plan.run, plan.digest, *map(asdict, roster))).digest()


class Seal(Protocol):
    """The keys that all members of an attempt share. Memory alone holds them."""

    def proof(self) -> str:
        """That this site has the key."""
        ...

    def check(self, proofs: Mapping[str, str]) -> None:
        """Hold the others to theirs.

        Raises
        ------
        Refused
            a proof is missing or false; names the site.
        """
        ...

    def mask(self, context: bytes, words: Words, answering: tuple[str, ...], *, private: bool) -> Words:
        """Words to be added to those of the sites that answer; for each context once. ``private``: for receivers alone.

        Raises
        ------
        AssertionError
            the context was used before.
        """
        ...

    def open(
        self, context: bytes, words: Words, n_words: int, answering: tuple[str, ...], *, private: bool
    ) -> Words | None:
        """The sum of what these sites masked; None where it is private, and this site no receiver.

        Raises
        ------
        BadData
            some site meant another step, or the sum was changed.
        """
        ...

    def digest(self, about: bytes, vectors: Iterable[Arr]) -> str:
        """Tells whether two members mean the same; tells nobody else anything."""
        ...

    def sign(self, said: bytes) -> str:
        """With the session key of this site's offer."""
        ...

    @property
    def resume_key(self) -> bytes:
        """For digests of states; it is kept beside them."""
        ...


class Secrets(Protocol):
    """This site's own secrets of one attempt."""

    @property
    def offer(self) -> Offer:
        """What the others see of them, signed."""
        ...

    def wrap(self, plan: Plan, roster: tuple[Offer, ...]) -> dict[str, str]:
        """This site's contribution to the key, sealed for each other site.

        Raises
        ------
        Refused
            a peer is not one that this site's policy pins, or its offer is not signed by the one that is.
        """
        ...

    def unwrap(self, wrapped: Mapping[str, str]) -> Seal:
        """The attempt's keys, from everybody's contribution.

        Raises
        ------
        Refused
            a contribution is missing, or another one than was committed to; names the site.
        """
        ...


class Keys(Protocol):
    """Makes secrets; each call draws new ones."""

    def draw(self, offer: Offer) -> Secrets:
        """For this offer, whose fields of keys and signature are still empty."""
        ...

    def is_signed(self, session_key: str, said: bytes, signature: str) -> bool:
        """Whether the holder of that session key said so."""
        ...


class PlaintextSeal:
    """No keys: sums as they are."""

    resume_key = b""

    def proof(self) -> str:
        return ""

    def check(self, proofs: Mapping[str, str]) -> None:
        """Nothing is proven."""

    def mask(self, context: bytes, words: Words, answering: tuple[str, ...], *, private: bool) -> Words:  # noqa: ARG002
        return words

    def open(
        self,
        context: bytes,  # noqa: ARG002
        words: Words,
        n_words: int,  # noqa: ARG002
        answering: tuple[str, ...],  # noqa: ARG002
        *,
        private: bool,  # noqa: ARG002
    ) -> Words:
        return words

    def digest(self, about: bytes, vectors: Iterable[Arr]) -> str:
        digest = hashlib.sha256(about)
        for vector in vectors:
            digest.update(vector.data.cast("B") if vector.size else b"")
        return digest.hexdigest()

    def sign(self, said: bytes) -> str:  # noqa: ARG002
        return ""
