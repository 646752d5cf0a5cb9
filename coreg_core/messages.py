r"""The closed list of what may cross a site's boundary. Nothing else can: the wire encodes these and no other type.

Knows arrays and plans, no socket and no machine. Every message is a frozen value; vectors are `Vector`: read-only, equal by
bytes, always a finite float64 matrix (m, k) of predictions or targets on the shared unlabelled instances. A session's own
messages (`Hello`, `Leaving`, `Rejected`) name no run; every other names the run that it belongs to.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, TypeAlias

import numpy as np
from annotated_types import Ge

from coreg_core.arrays import Arr
from coreg_core.errors import BadData
from coreg_core.outcomes import Outcome
from coreg_core.plan import Natural, NotNegative, Plan
from coreg_core.rounds.columns import Column
from coreg_core.views import Part

PROTOCOL_VERSION = 2
Large: TypeAlias = Annotated[int, Ge(0)]


@dataclass(frozen=True, eq=False)
class Vector:
    """A read-only (m, k) float64 matrix, equal to another by shape and bytes (so that NaN and -0.0 cannot hide)."""

    values: Arr

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or self.values.dtype != np.float64:
            raise BadData(f"a vector is a float64 matrix (m, k), not {self.values.dtype} {self.values.shape}.")
        values = np.ascontiguousarray(self.values).view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vector):
            return NotImplemented
        return self.shape == other.shape and bool(
            np.array_equal(self.values.view(np.uint64), other.values.view(np.uint64))
        )

    def __hash__(self) -> int:
        return hash((self.shape, self.digest))

    @property
    def shape(self) -> tuple[int, int]:
        """(m, k)."""
        m, k = self.values.shape
        return m, k

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the little-endian bytes, row by row."""
        return hashlib.sha256(self.values.astype("<f8", copy=False).data.cast("B")).hexdigest()

    @property
    def finite(self) -> bool:
        """No NaN and no infinity; a sum tells, and is checked entry by entry only when it is not finite."""
        with np.errstate(over="ignore", invalid="ignore"):
            return bool(np.isfinite(self.values.sum()) or np.isfinite(self.values).all())


# --- from a site --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """The first message of a session: who, which protocol, which release of coreg."""

    site: str
    protocol: Natural
    release: str = ""


@dataclass(frozen=True)
class PlanAccepted:
    """The agent has factored its data under the plan, on these unlabelled instances (how many; digest of the ordered ids).

    ``bound`` is b_v and ``squared_norm`` ‖y_v‖² of the transformed targets: both disclosures, and both in the policy.
    ``data_digest`` is salted by the run and a secret of the site: it tells the coordinator that nothing changed
    when an agent comes back, and nothing else.
    """

    run: str
    plan_digest: str
    n_unlabelled: Large
    ids_digest: str
    data_digest: str
    bound: NotNegative
    squared_norm: NotNegative
    threads: Natural


@dataclass(frozen=True)
class PlanRefused:
    """The agent will not take part, and why."""

    run: str
    reason: str


@dataclass(frozen=True)
class Prediction:
    """respond(t, μ): one number for each unlabelled instance and column."""

    run: str
    question: Large
    attempt: Natural
    values: Vector


@dataclass(frozen=True)
class Fault:
    """A question that the agent cannot or may not answer, and why."""

    run: str
    question: Large
    attempt: Natural
    reason: str


@dataclass(frozen=True)
class Fetched:
    """The run's end has arrived, and the site's models, where there are any, are on its disk."""

    run: str


@dataclass(frozen=True)
class Leaving:
    """The agent ends its session: it has what it came for, or its operator stopped it."""

    reason: str


FromSite: TypeAlias = Hello | PlanAccepted | PlanRefused | Prediction | Fault | Fetched | Leaving


# --- to a site ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """respond(targets, weights), or its linear part; ``question`` counts the questions of a run from 0.

    ``verifies``: the targets may become the run's result, so the site writes their digest down; `Finished` is held to it.
    """

    run: str
    question: Large
    attempt: Natural
    part: Part
    columns: tuple[Column, ...]
    verifies: bool
    targets: Vector

    @property
    def weights(self) -> Arr:
        """μ of each column, (k,)."""
        return np.array([column.weight for column in self.columns])


@dataclass(frozen=True)
class Finished:
    """The run is over. The site's models are its answers to these targets; none where no round was verified."""

    run: str
    outcome: Outcome
    reason: str
    columns: tuple[Column, ...] = ()
    targets: Vector | None = None


@dataclass(frozen=True)
class Dismissed:
    """The run goes on, or ends, without this site, and why. Its session stays open for other runs."""

    run: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Rejected:
    """The coordinator will not have this session, and why."""

    reason: str


ToSite: TypeAlias = Plan | Ask | Finished | Dismissed | Rejected
