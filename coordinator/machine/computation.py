"""What a run computes, whichever objective it has: a value stepped from outside over a state of arrays.

The one seam between the life of a run (who takes part, what was answered, what is written down) and what its questions
mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from coordinator.machine.additive import AdditiveComputation
from coordinator.machine.agreement import AgreementComputation
from coordinator.machine.finished_fields import Told
from coordinator.machine.records import Sites, StepTaken
from coordinator.machine.scoring import ScoringComputation
from coordinator.machine.sums import Answer
from coreg_core.agreement.schedules.schedule import FinalTargets, Progress
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Ask, Inquiry, PlanAccepted
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Additive, Agreement, Plan, Scoring
from coreg_core.protocol.vectors import Vector


class Computation(Protocol):
    """Pure functions of a state, for one membership; none changes what it is given."""

    @property
    def snapshots(self) -> bool:
        """Whether the whole state is written down now and then, or the sums are kept from the attempt's beginning."""
        ...

    @property
    def probes_newcomers(self) -> bool:
        """Whether a site outside the membership is asked the open question on trial; otherwise its acceptance is enough."""
        ...

    def start(self, n_unlabelled: int, warm: FinalTargets | None, rounds: int, known: Vector | None) -> Any:
        """The first state; ``warm`` models, ``rounds`` so far, and the label-bearing sum of these sites where it is ``known``.

        Raises
        ------
        UsageError
            the plan cannot be carried out with so many instances.
        """
        ...

    def restore(self, arrays: Mapping[str, Arr]) -> Any:
        """The state that its ``to_arrays`` wrote."""
        ...

    def question(self, state: Any, question: int, attempt: int) -> tuple[Ask | Inquiry, int | None]:
        """The next question under its number, and the position of the one site that it is put to; None: to all."""
        ...

    def reusable(self, ask: Ask | Inquiry) -> bool:
        """Whether answers to this question are kept when it is cut short, since labels are in them and it would be the same."""
        ...

    def fault(self, state: Any, ask: Ask | Inquiry, answer: Answer) -> str | None:
        """Why an answer cannot be used; None where it can."""
        ...

    def false(self, ask: Ask | Inquiry, answer: Answer, stated: PlanAccepted) -> str | None:
        """Why an answer in the clear, of a site that accepted so, is none that an honest site gives; None where it may be."""
        ...

    def step_of(self, ask: Ask | Inquiry, answers: Sequence[Answer], state: Any) -> StepTaken:
        """The record of the sum of these answers.

        Raises
        ------
        BadData
            the masks do not cancel, or the sum is none of honest sites.
        """
        ...

    def step(self, state: Any, taken: StepTaken) -> Any:
        """The state after a sum.

        Raises
        ------
        BadData
            what the sites have together is not enough to go on.
        """
        ...

    def affine_after(self, known: Mapping[Sites, Vector], sites: Sites, taken: StepTaken) -> Mapping[Sites, Vector]:
        """The label-bearing sums that are known after a step, by the sites that they were summed over."""
        ...

    def rounds(self, state: Any) -> int: ...

    def progress(self, state: Any) -> Progress | None: ...

    def outcome(self, state: Any) -> tuple[Outcome, str] | None:
        """How it has ended, and what to say of it beyond the outcome's own words; None while it goes on."""
        ...

    def models(self, state: Any) -> FinalTargets | None:
        """What the sites' models answer to."""
        ...

    def told(self, models: FinalTargets, site: int) -> Told:
        """What `Finished` says of the models to the site at that position."""
        ...


def computation_of(plan: Plan, accepted: Mapping[str, PlanAccepted], participants: Sites) -> Computation:
    """What this plan computes with these sites."""
    match plan.objective:
        case Agreement():
            return AgreementComputation.of(plan, accepted, participants)
        case Additive():
            return AdditiveComputation.of(plan, plan.objective, participants)
        case Scoring():
            return ScoringComputation.of(plan, plan.objective, accepted, participants)
