r"""The closed list of what may cross a site's boundary. Nothing else can: the wire encodes these and no other type.

Knows arrays, no socket and no machine. Every message is a frozen value; vectors are `Vector`: read-only, equal by
bytes, always a finite float64 matrix (m, k) of predictions or targets on the shared unlabelled instances.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np

from coreg_core.arrays import Arr
from coreg_core.errors import BadData
from coreg_core.rounds import ScheduleName
from coreg_core.rounds.schedule import Stop
from coreg_core.views import BoundRule, Part

PROTOCOL_VERSION = 1

Form: TypeAlias = Literal["exact", "semi-parametric", "landmarks", "linear"]
TargetScale: TypeAlias = Literal["centred", "raw", "standardised"]
LostPolicy: TypeAlias = Literal["wait", "continue"]


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


@dataclass(frozen=True)
class Plan:
    """What the federation will compute, and under which terms. Each agent accepts it or refuses, before anything else.

    Its digest covers every field but ``run``: the same plan started again is the same digest.
    """

    run: str
    federation: str
    sites: tuple[str, ...]
    min_sites: int
    on_lost: LostPolicy
    form: Form
    kernel: str
    bandwidth: str | float
    ridge: str | float
    degree: int
    offset: float
    landmarks: int
    seed: int
    coupling: tuple[float, ...]
    schedule: ScheduleName
    tolerance: float
    prediction_tolerance: float
    max_rounds: int
    target: TargetScale
    bound: BoundRule
    threads: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of every field but ``run``."""
        fields = {name: value for name, value in self.to_dict().items() if name != "run"}
        return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


# --- from a site --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hello:
    """The first message: who, which protocol, and which unlabelled set (its size and the digest of its ordered ids)."""

    site: str
    protocol: int
    n_unlabelled: int
    ids_digest: str


@dataclass(frozen=True)
class PlanAccepted:
    """The agent has factored its data under the plan.

    ``bound`` is b_v and ``scale`` ‖y_v‖² of the transformed targets: both disclosures, and both in the policy.
    ``data_digest`` is salted by the run and a secret of the site: it tells the coordinator that nothing changed
    when an agent comes back, and nothing else.
    """

    run: str
    plan_digest: str
    data_digest: str
    bound: float
    scale: float
    threads: int


@dataclass(frozen=True)
class PlanRefused:
    """The agent will not take part, and why."""

    run: str
    reason: str


@dataclass(frozen=True)
class Prediction:
    """respond(t, μ): one number for each unlabelled instance and column."""

    run: str
    round: int
    attempt: int
    values: Vector


@dataclass(frozen=True)
class Fault:
    """A request that the agent cannot or may not answer, and why."""

    run: str
    round: int
    attempt: int
    reason: str


@dataclass(frozen=True)
class Leaving:
    """The agent ends its session: it has its model, or its operator stopped it."""

    reason: str


FromSite: TypeAlias = Hello | PlanAccepted | PlanRefused | Prediction | Fault | Leaving


# --- to a site ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """respond(targets, weights), or its linear part; ``round`` counts the questions of a run from 0."""

    run: str
    round: int
    attempt: int
    part: Part
    weights: tuple[float, ...]
    targets: Vector


@dataclass(frozen=True)
class Finished:
    """The run is over. The site's models are its answers to these targets; none where no round was verified."""

    run: str
    stop: Stop
    reason: str
    weights: tuple[float, ...] = ()
    targets: Vector | None = field(default=None)


@dataclass(frozen=True)
class Rejected:
    """The coordinator will not have this session, and why."""

    reason: str


ToSite: TypeAlias = Plan | Ask | Finished | Rejected
