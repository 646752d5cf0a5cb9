"""What a replica steps: the job over a site's data, and the cache that members of a simulation share."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from coreg_core.computation.rounds import Round
from coreg_core.numerics.arrays import Arr


class Job(Protocol):
    """One kind of run over this site's data. ``resumes``: whether another attempt goes on from the sums of an earlier one."""

    @property
    def resumes(self) -> bool: ...

    @property
    def ids_digest(self) -> str:
        """Digest of the shared instances' ids."""
        ...

    @property
    def n_unlabelled(self) -> int: ...

    @property
    def data_digest(self) -> str:
        """Digest of all data that the answers depend on."""
        ...

    def begin(self, sites: tuple[str, ...], key: bytes = b"") -> None:
        """Return to the state before the first question, among these sites. ``key`` is the members' key for the run."""
        ...

    def answer(self, asked: Round) -> tuple[Arr, tuple[float, ...]]:
        """This site's summand: vectors and scalars.

        Raises
        ------
        CoregError
            these rows do not allow an answer; the message names no datum.
        """
        ...


Made = TypeVar("Made")


class Fold(Protocol):
    """A cache of work that is equal for all members; a simulation of many sites shares it among them."""

    def __call__(self, key: tuple[Any, ...], make: Callable[[], Made]) -> Made:
        """``make()``, or its earlier result for this key."""
        ...


def each_by_itself(key: tuple[Any, ...], make: Callable[[], Made]) -> Made:  # noqa: ARG001
    """No cache."""
    return make()
