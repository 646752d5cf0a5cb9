r"""A site's part in scoring together: one answer from a model that is on its disk, and the scores at the end.

    score(x) = a + Σ_v h_v(x_v)  (additive parts)        score(x) = (1/M) Σ_v f_v(x_v)  (agreeing models)

Nothing is trained, and no label is looked at. A site that has no record of an instance refuses, by number and by its own name, or
answers with its part's mean, as the plan has it.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from coreg_core.computation.rounds import Ask, Round
from coreg_core.computation.scoring import ScoringComputation, ScoringState
from coreg_core.errors import BadData, Refused
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, Scoring
from site_agent.machine.memory import SiteResult


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
    ids_digest, salt, instances, ids
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
    ids: tuple[str, ...] = ()

    @property
    def Z(self) -> Float64[Arr, " m"]:
        """One row an instance, for whoever asks how many there are."""
        return self.part

    @property
    def digest_of_part(self) -> bytes:
        """What must not change while a run goes on."""
        return np.ascontiguousarray(np.where(self.missing, np.inf, self.part)).tobytes()


class ScoringJob:
    """`site_agent.machine.replica.Job`: holds the plan to the model and to what is there.

    Raises
    ------
    BadData
        an instance that this site lacks, where the plan refuses.
    Refused
        the plan is of another model than this site's.
    """

    def __init__(self, plan: Plan, terms: Scoring, name: str, batch: Batch, pin_threads: Callable[[int], int]):
        pin_threads(plan.iteration.threads)
        self.plan, self.terms, self.name, self.batch = plan, terms, name, batch
        self.n_unlabelled, self.ids_digest = len(batch.part), batch.ids_digest
        self.data_digest = hashlib.sha256(batch.salt + plan.run.encode() + batch.digest_of_part).hexdigest()
        if (self.batch.of_run, self.batch.trained) != (terms.of_run, terms.trained):
            raise Refused(
                f"the plan scores with models of run {terms.of_run} ({terms.trained}), and {self.name} was started with one "
                f"of run {self.batch.of_run} ({self.batch.trained}). Give that run's model with --model."
            )
        if strangers := sorted(set(plan.sites) - set(self.batch.sites)):
            raise Refused(f"{', '.join(strangers)} took no part in run {terms.of_run}, whose models are summed.")
        if (
            plan.masked
            and not plan.privacy.membership_changes
            and (left := sorted(set(self.batch.sites) - set(plan.sites)))
        ):
            # On other instances the site would not know the earlier sums again, and daily batches overlap.
            raise Refused(
                f"{', '.join(left)} took part in run {terms.of_run} and would be left out: sums of these models with and without "
                "a site tell its part of whatever instances both have. Score with every site of that run, or with [privacy] "
                "membership_changes = true, which every site's policy has to allow."
            )
        missing = int(self.batch.missing.sum())
        if missing and (terms.missing_instances == "refuse" or self.batch.mean is None):
            instead = (
                ""
                if self.batch.mean is None
                else '; missing_instances = "mean" in [scoring] would put its part at its mean there'
            )
            raise BadData(f"{self.name} has no record of {missing} of {self.n_unlabelled} instances{instead}.")
        self._part = batch.part if batch.mean is None else np.where(batch.missing, batch.mean, batch.part)

    def begin(self, sites: tuple[str, ...]) -> None:
        """Nothing depends on them."""

    def answer(self, asked: Round) -> tuple[Arr, tuple[float, ...]]:
        """See `Job.answer`."""
        question = asked.question
        if not isinstance(question, Ask) or question.stage not in ("sizes", "score"):
            raise Refused("a question of a training.")
        if question.stage == "sizes":
            return np.zeros((0, 0)), (float(self._part @ self._part),)
        return np.ascontiguousarray(self._part[:, None]), ()

    def result(
        self,
        computation: ScoringComputation,  # noqa: ARG002
        state: ScoringState,
        position: int,  # noqa: ARG002
        outcome: Outcome,
        reason: str,
    ) -> SiteResult:
        """The scores, where this site may have them."""
        scores: Arr | None = None
        if state.scores is not None and self.name in (self.terms.receivers or self.plan.sites):
            total = state.scores[:, 0]
            scores = self.batch.intercept + (
                total if self.terms.trained == "additive" else total / len(self.plan.sites)
            )
        missing = int(self.batch.missing.sum())
        told = f"of {missing} of these instances this site has no record: its part stands at its mean"
        findings = (told,) if missing else ()
        return SiteResult(outcome, reason, self.plan, (), None, 0.0, 1.0, scores=scores, findings=findings)
