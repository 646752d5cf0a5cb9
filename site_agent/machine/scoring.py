r"""A site's part in scoring together: one question, one answer from a model that is on its disk, and the scores at the end.

    score(x) = a + Σ_v h_v(x_v)  (additive parts)        score(x) = (1/M) Σ_v f_v(x_v)  (agreeing models)

Nothing is trained, and no label is looked at. A site that has no record of an instance refuses, by number and by its own name, or
answers with its part's mean, as the plan has it. Held to the plan like a training (jobs/additive.py).
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float64

from coreg_core.additive.question_types import Ask as Kind
from coreg_core.additive.question_types import Question
from coreg_core.errors import BadData, Refused
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Ask, Fault, Finished, Inquiry, Masked, PlanAccepted, Share
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, Scoring
from coreg_core.protocol.vectors import Vector
from site_agent.machine.masks import NO_KEYS, Masks, Offer, in_the_clear, masked, reach_of, scale_fault
from site_agent.machine.memory import Remembered, SiteResult


@dataclass(frozen=True, eq=False)
class Batch:
    """Instances to be scored, as one site knows them, in the order of their sorted ids; computed before anybody is dialled.

    Parameters
    ----------
    part
        what the model says of each, without the federation's intercept; any number where the instance is ``missing``.
    missing
        of which instances the site has no record.
    mean
        what stands for the part there, where the plan says so: its mean over the instances that it was trained with.
    intercept
        what every site adds to the sum.
    of_run, trained, sites
        the model's run, its objective, and the sites of its plan.
    ids_digest, salt, instances
        as of `PrivateData`.
    """

    part: Float64[Arr, " m"]
    missing: Bool[np.ndarray, " m"]
    mean: float | None
    intercept: float
    of_run: str
    trained: str
    sites: tuple[str, ...]
    ids_digest: str
    salt: bytes = b""
    instances: tuple[str, ...] = ()

    @property
    def Z(self) -> Float64[Arr, " m"]:
        """One row an instance, for whoever asks how many there are."""
        return self.part

    @property
    def digest_of_part(self) -> bytes:
        """What must not change while a run goes on."""
        return np.ascontiguousarray(np.where(self.missing, np.inf, self.part)).tobytes()


@dataclass(frozen=True)
class ScoringJob:
    """See the module's docstring."""

    plan: Plan
    terms: Scoring
    name: str
    batch: Batch
    acceptance: PlanAccepted
    most: int
    remembered: Remembered
    masks: Masks | None = None
    faults: int = 0
    result: SiteResult | None = None

    @property
    def over(self) -> bool:
        """The run has ended for this site."""
        return self.result is not None

    def under(self, masks: Masks) -> "ScoringJob":
        return replace(self, masks=masks)

    def answer(self, asked: Ask | Inquiry) -> tuple["ScoringJob", Share | Masked | Fault]:
        """This site's part of every instance, or why there is none."""
        number = (asked.question, asked.attempt)
        if (reason := self._unanswerable(asked)) is not None:
            return replace(self, faults=self.faults + 1), Fault(asked.run, *number, reason)
        assert isinstance(asked, Inquiry)
        part = np.ascontiguousarray(_told(self.batch)[:, None])
        may_change, participants = self.plan.privacy.membership_changes, self._participants
        remembered = self.remembered.after(number, asked.digest, None, participants=participants, may_change=may_change)
        told: Share | Masked
        if self.masks is not None and self.plan.masked:
            told = masked(self.masks, asked, asked.digest, part, ())
        else:
            told = Share(asked.run, *number, (), Vector(in_the_clear(part, asked)))
        return replace(self, remembered=remembered), told

    @property
    def _participants(self) -> tuple[str, ...]:
        return () if self.masks is None else self.masks.roster.sites

    def _unanswerable(self, asked: Ask | Inquiry) -> str | None:
        if self.over:
            return "the run is over for this site."
        nothing = Question(Kind.TOGETHER, np.zeros((0, 0)))
        number, exponents = (asked.question, asked.attempt), asked.exponents
        if not isinstance(asked, Inquiry) or asked != Inquiry.of(asked.run, *number, nothing, exponents):
            return "nothing that scoring together asks."
        if self.plan.masked and (self.masks is None or self.masks.roster.attempt != asked.attempt):
            return f"no roster of attempt {asked.attempt} came before it, so nobody's masks would cancel."
        bound = 0.5 * 2.0**self.acceptance.reach
        if (self.plan.masked or exponents) and (
            reason := scale_fault(exponents, (bound,), max(1, len(self._participants)))
        ):
            return reason
        if self.remembered.answered >= self.most:
            return f"more than {self.most} questions about these instances (max_questions in policy.toml)."
        return None

    def finish(self, finished: Finished) -> tuple["ScoringJob", str | None]:
        """The scores, where this site may have them; or what the plan does not allow about this end."""
        scores: Arr | None = None
        may = self.name in (self.terms.receivers or self.plan.sites)
        if finished.targets is not None:
            if finished.columns or finished.targets.shape != (len(self.batch.part), 1):
                return self, "scores of other instances."
            if not may:
                return self, "scores that the plan has for other sites."
            if not self.remembered.asked:
                return self, "scores, although no question was answered (or the ledger that tells of it is gone)."
            total = finished.targets.values[:, 0]
            scores = self.batch.intercept + (
                total if self.terms.trained == "additive" else total / len(self.plan.sites)
            )
        elif finished.outcome is Outcome.CONVERGED and may:
            return self, "a run that scored, without the scores for a site that may have them."
        result = SiteResult(
            finished.outcome, finished.reason, self.plan, (), None, 0.0, 1.0, scores=scores, findings=self._findings
        )
        return replace(self, result=result), None

    @property
    def _findings(self) -> tuple[str, ...]:
        missing = int(self.batch.missing.sum())
        return (
            (f"of {missing} of these instances this site has no record: its part stands at its mean",)
            if missing
            else ()
        )


def _told(batch: Batch) -> Float64[Arr, " m"]:
    return batch.part if batch.mean is None else np.where(batch.missing, batch.mean, batch.part)


def begin(
    plan: Plan,
    terms: Scoring,
    name: str,
    batch: Batch,
    pin_threads: Callable[[int], int],
    remembered: Remembered,
    most: int,
    offer: Offer = NO_KEYS,
) -> ScoringJob:
    """Hold the plan to the model and to what is there.

    Raises
    ------
    BadData
        an instance that this site lacks, where the plan refuses.
    Refused
        the plan is of another model than this site's.
    """
    if (batch.of_run, batch.trained) != (terms.of_run, terms.trained):
        raise Refused(
            f"the plan scores with models of run {terms.of_run} ({terms.trained}), and {name} was started with one of run "
            f"{batch.of_run} ({batch.trained}). Give that run's model with --model."
        )
    if strangers := sorted(set(plan.sites) - set(batch.sites)):
        raise Refused(f"{', '.join(strangers)} took no part in run {terms.of_run}, whose models are summed.")
    if plan.masked and not plan.privacy.membership_changes and (left := sorted(set(batch.sites) - set(plan.sites))):
        # On other instances the site would not know the earlier sums again, and daily batches overlap.
        raise Refused(
            f"{', '.join(left)} took part in run {terms.of_run} and would be left out: sums of these models with and without a "
            "site tell its part of whatever instances both have. Score with every site of that run, or with [privacy] "
            "membership_changes = true, which every site's policy has to allow."
        )
    missing = int(batch.missing.sum())
    if missing and (terms.missing_instances == "refuse" or batch.mean is None):
        instead = (
            ""
            if batch.mean is None
            else '; missing_instances = "mean" in [scoring] would put its part at its mean there'
        )
        raise BadData(f"{name} has no record of {missing} of {len(batch.part)} instances{instead}.")
    digest = hashlib.sha256(batch.salt + plan.run.encode() + batch.digest_of_part).hexdigest()
    threads = pin_threads(plan.iteration.threads)
    about = (plan.run, plan.digest, len(batch.part), batch.ids_digest, digest, 0.0, 0.0, threads)
    reach = reach_of(float(np.abs(_told(batch)).max(initial=0.0)))
    accepted = PlanAccepted(*about, reach=reach, key=offer.key, signature=offer.signature, identity=offer.identity)
    return ScoringJob(plan, terms, name, batch, accepted, most, remembered)
