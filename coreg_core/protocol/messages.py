r"""The closed list of what may cross a site's boundary. Nothing else can: the wire encodes these and no other type.

Every message is a frozen value; vectors are `Vector`: read-only, equal by bytes, always a finite float64 matrix of
numbers for the shared unlabelled instances: (m, k) predictions or targets under the agreement, (2m + 1, k) points under
the additive objective. `Ask` and `Prediction` are the questions and answers of the first, `Inquiry` and `Share` those
of the second (what each kind asks: coreg_core/additive/question_types.py). A session's own messages (`Hello`,
`Leaving`, `Rejected`) name no run; every other names the run that it belongs to.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, TypeAlias

import numpy as np
from annotated_types import Ge, Le, Len

from coreg_core.additive import question_types
from coreg_core.agreement.columns import Column
from coreg_core.agreement.views import Part
from coreg_core.masking.fixed_point import LEAST_EXPONENT, MOST_EXPONENT
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Natural, NotNegative, Plan
from coreg_core.protocol.vectors import Vector, Words

PROTOCOL_VERSION = 2
Large: TypeAlias = Annotated[int, Ge(0)]
# Of an inquiry or a share: a grid of common rows has twelve columns a fold, and a fold's column has one scalar.
MOST_SCALARS = 4096
Scalars: TypeAlias = Annotated[tuple[float, ...], Len(0, MOST_SCALARS)]
# e of 2ᵉ, by which a column is scaled to integers before it is summed (coreg_core.masking); none where answers are not summed.
Exponent: TypeAlias = Annotated[int, Ge(LEAST_EXPONENT), Le(MOST_EXPONENT)]
Exponents: TypeAlias = Annotated[tuple[Exponent, ...], Len(0, MOST_SCALARS)]


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
    ``rounding`` is ρ_v: how far rounding, and a cut of the span, may have moved what the site answers for. ``n_labelled`` is
    n_v, told where the plan's couplings are relative to it, and 0 elsewhere. ``data_digest`` is salted by the run and a
    secret of the site: it tells the coordinator that nothing changed when an agent comes back, and nothing else. Under a plan
    of sums the three numbers are 0 here and are summed, masked, with every answer; ``reach`` is p where this site's
    label-bearing answers are below 2ᵖ, a multiple of four. ``key`` is its key for the masks of this run (X25519, hex),
    ``signature`` that of its certificate's key ``identity`` on it.
    """

    run: str
    plan_digest: str
    n_unlabelled: Large
    ids_digest: str
    data_digest: str
    bound: NotNegative
    squared_norm: NotNegative
    threads: Natural
    rounding: NotNegative = 0.0
    n_labelled: Natural = 0
    reach: Annotated[int, Ge(LEAST_EXPONENT), Le(MOST_EXPONENT)] = 24
    key: str = ""
    signature: str = ""
    identity: str = ""

    @property
    def without_key(self) -> "PlanAccepted":
        """Less what is another one in every process of the agent."""
        return replace(self, key="", signature="")


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
class Share:
    """What a site adds to one sum of the additive objective: vectors over the shared instances, and a few scalars.

    ``values`` is None where the answer is scalars alone.
    """

    run: str
    question: Large
    attempt: Natural
    scalars: Scalars
    values: Vector | None

    @classmethod
    def of(cls, inquiry: "Inquiry", answer: question_types.Answer) -> "Share":
        """The message of an answer."""
        scalars = tuple(float(x) for x in answer.scalars)
        return cls(inquiry.run, inquiry.question, inquiry.attempt, scalars, _vector(answer.vectors))

    def answer(self) -> question_types.Answer:
        """The inverse of `of`."""
        vectors = question_types.NOTHING if self.values is None else self.values.values
        return question_types.Answer(vectors, np.array(self.scalars, dtype=np.float64))


@dataclass(frozen=True)
class Masked:
    """An answer under masks: in itself it says nothing; the sum over the roster's sites is the sum of their answers."""

    run: str
    question: Large
    attempt: Natural
    words: Words


@dataclass(frozen=True)
class Fault:
    """A question that the agent cannot or may not answer, and why."""

    run: str
    question: Large
    attempt: Natural
    reason: str


@dataclass(frozen=True)
class Head:
    """Where a site's ledger stands: so many lines since it was begun, and the SHA-256 of the last, which pins them all.

    ``at`` is the site's own clock, ISO 8601 in UTC. A ledger of no lines is none.
    """

    lines: Large = 0
    last: str = ""
    at: str = ""


NO_HEAD = Head()


@dataclass(frozen=True)
class Fetched:
    """The run's end has arrived, and the site's models, where there are any, are on its disk; its ledger's head, signed.

    ``signature`` is that of the site's certificate's key on the head of everything that it wrote down before this message
    (`coreg_wire.identity.checkpoints`). Without TLS there is no key, and neither.
    """

    run: str
    head: Head = NO_HEAD
    signature: str = ""


@dataclass(frozen=True)
class Leaving:
    """The agent ends its session: it has what it came for, or its operator stopped it."""

    reason: str


FromSite: TypeAlias = Hello | PlanAccepted | PlanRefused | Prediction | Share | Masked | Fault | Fetched | Leaving


# --- to a site ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Participant:
    """One site of a roster, by what it said of itself with its acceptance."""

    site: str
    key: str
    signature: str
    identity: str


@dataclass(frozen=True)
class Roster:
    """Whose answers are summed under this attempt's number, with the keys that their masks are made from."""

    run: str
    attempt: Natural
    participants: Annotated[tuple[Participant, ...], Len(1, 10_000)]

    @property
    def sites(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(p.site for p in self.participants)


@dataclass(frozen=True)
class Ask:
    """respond(targets, weights), or its linear part; ``question`` counts the questions of a run from 0.

    ``is_candidate``: the targets may become the run's result, so the site writes their digest down; `Finished` is held to it.
    """

    run: str
    question: Large
    attempt: Natural
    part: Part
    columns: tuple[Column, ...]
    is_candidate: bool
    targets: Vector
    exponents: Exponents = ()

    @property
    def weights(self) -> Arr:
        """μ of each column, (k,)."""
        return np.array([column.weight for column in self.columns])


@dataclass(frozen=True)
class Inquiry:
    """A question of the additive objective, put to every site: its kind, its columns, and the points that it is asked at.

    ``question`` and ``attempt`` count as in `Ask`; ``step`` is how many tuning steps were made. With TRACES the probes' sum Q_E
    (m, P) stands below the points, under the columns of the probes and beside zeros: 3m + 1 rows.
    """

    run: str
    question: Large
    attempt: Natural
    kind: question_types.Ask
    part: Part
    step: Natural
    columns: Annotated[tuple[question_types.Column, ...], Len(0, MOST_SCALARS)]
    scalars: Scalars
    targets: Vector | None
    exponents: Exponents = ()

    @classmethod
    def of(
        cls, run: str, question: int, attempt: int, asked: question_types.Question, exponents: tuple[int, ...] = ()
    ) -> "Inquiry":
        """The message of a question."""
        targets = asked.targets
        if asked.aside is not None:
            beside = np.zeros((len(asked.aside), targets.shape[1] - asked.aside.shape[1]))
            targets = np.concatenate([targets, np.concatenate([beside, asked.aside], axis=1)])
        about = (asked.ask, asked.part, asked.step, asked.columns, asked.scalars)
        return cls(run, question, attempt, *about, _vector(targets), exponents)

    def asked(self) -> question_types.Question:
        """The inverse of `of`; a vector that TRACES cannot have is left as it is, for whoever judges its shape."""
        targets, aside = question_types.NOTHING if self.targets is None else self.targets.values, None
        m, rest = divmod(len(targets) - 1, 3)
        if self.kind is question_types.Ask.TRACES and rest == 0 and targets.shape[1] > 1:
            targets, aside = targets[: 2 * m + 1], np.ascontiguousarray(targets[2 * m + 1 :, 1:])
        return question_types.Question(self.kind, targets, self.columns, self.part, self.step, self.scalars, aside)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything that is asked; what tells an inquiry from another under the same number."""
        columns = [asdict(column) for column in self.columns]
        targets = None if self.targets is None else [*self.targets.shape, self.targets.digest]
        plain = [self.kind.name, self.part, self.step, columns, self.scalars, targets, self.exponents]
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Finished:
    """The run is over. The site's models are its answers to these targets; none where no round was verified.

    Under the additive objective the targets are the point of the last MODEL question, and there are no columns; ``forecast``
    are the sums of FORECAST, where the plan has one.
    """

    run: str
    outcome: Outcome
    reason: str
    columns: tuple[Column, ...] = ()
    targets: Vector | None = None
    forecast: Scalars = ()


@dataclass(frozen=True)
class Dismissed:
    """The run goes on, or ends, without this site, and why. Its session stays open for other runs."""

    run: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Countersigned:
    """The coordinator has the head of this site's ledger, and says so under the key of its own certificate.

    ``at`` is the coordinator's clock. No signature: why there is none stands in ``reason``.
    """

    run: str
    head: Head
    at: str
    signature: str
    certificate: str
    reason: str = ""


@dataclass(frozen=True)
class Rejected:
    """The coordinator will not have this session, and why; ``final``: an agent that dials again would not mend it."""

    reason: str
    final: bool = False


ToSite: TypeAlias = Plan | Roster | Ask | Inquiry | Finished | Countersigned | Dismissed | Rejected


def _vector(values: Arr) -> Vector | None:
    return Vector(values) if values.size else None
