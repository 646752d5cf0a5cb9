r"""A site's part in scoring together: one answer from a stored model, and the scores at the end.

    score(x) = a + Σ_v h_v(x_v)  (additive parts)        score(x) = (1/M) Σ_v f_v(x_v)  (agreeing models)

No model is trained and no label is used. If a site has no record of an instance, the plan decides: the site refuses with
the number of such instances, or answers with the mean of its part.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from coreg_core.computation.rounds import Round
from coreg_core.computation.scoring import ScoringComputation, ScoringState
from coreg_core.errors import BadData, Refused
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan, Scoring
from site_agent.machine.memory import SiteResult


@dataclass(frozen=True, eq=False)
class Batch:
    """One site's instances to score, in the order of their sorted ids; computed before the agent connects.

    Parameters
    ----------
    part
        the model's prediction for each instance, without the federation's intercept; any number if it is ``missing``.
    missing
        the instances without a record at this site.
    mean
        replaces the part of a missing instance, if the plan allows it: the mean over the training instances.
    intercept
        added to the sum of all parts.
    of_run, trained, sites
        the model's run, its objective, and the sites of its plan.
    ids_digest, salt, instances, ids
        as in `PrivateData`.
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
    instances: str = ""
    ids: tuple[str, ...] = ()

    @property
    def Z(self) -> Float64[Arr, " m"]:
        """One row for each instance, as in `PrivateData`: callers take its length."""
        return self.part

    @property
    def digest_of_part(self) -> bytes:
        """The bytes that must not change during a run."""
        return np.ascontiguousarray(np.where(self.missing, np.inf, self.part)).tobytes()


class ScoringJob:
    """`site_agent.machine.job.Job`: checks the plan against the model and the instances.

    Raises
    ------
    BadData
        this site has no record of an instance, and the plan refuses such instances.
    Refused
        the plan names another model than this site's.
    """

    resumes = True

    def __init__(self, plan: Plan, terms: Scoring, name: str, batch: Batch, pin_threads: Callable[[int], int]):
        pin_threads(plan.iteration.threads)
        self.plan, self.terms, self.name, self.batch = plan, terms, name, batch
        self.n_unlabelled, self.ids_digest = len(batch.part), batch.ids_digest
        self.data_digest = hashlib.sha256(batch.salt + plan.run.encode() + batch.digest_of_part).hexdigest()
        if (self.batch.of_run, self.batch.trained) != (terms.of_run, terms.trained):
            raise Refused(
                f"the plan scores with models of run {terms.of_run} ({terms.trained}), but {self.name} was started with one "
                f"of run {self.batch.of_run} ({self.batch.trained}). Give that run's model with --model."
            )
        if strangers := sorted(set(plan.sites) - set(self.batch.sites)):
            raise Refused(f"{', '.join(strangers)} took no part in run {terms.of_run} and has no model of it.")
        if (
            plan.masked
            and not plan.privacy.membership_changes
            and (left := sorted(set(self.batch.sites) - set(plan.sites)))
        ):
            # The differencing rule compares equal sets of instances, but daily batches overlap, so check the sites here.
            raise Refused(
                f"{', '.join(left)} took part in run {terms.of_run} and would be left out. Sums with and without a site reveal "
                "its part at the instances that both contain. Score with every site of that run, or with [privacy] "
                "membership_changes = true, if every site's policy allows it."
            )
        missing = int(self.batch.missing.sum())
        if missing and (terms.missing_instances == "refuse" or self.batch.mean is None):
            instead = (
                ""
                if self.batch.mean is None
                else ' Set missing_instances = "mean" in [scoring] to use the mean of its part there.'
            )
            raise BadData(f"{self.name} has no record of {missing} of {self.n_unlabelled} instances.{instead}")
        self._part = batch.part if batch.mean is None else np.where(batch.missing, batch.mean, batch.part)

    def begin(self, sites: tuple[str, ...], key: bytes = b"") -> None:
        """No state depends on the sites."""

    def answer(self, asked: Round) -> tuple[Arr, tuple[float, ...]]:
        """See `Job.answer`."""
        question = asked.question
        if question.stage not in ("sizes", "score"):
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
        """The scores, if this site is a receiver."""
        scores: Arr | None = None
        if state.scores is not None and self.name in (self.terms.receivers or self.plan.sites):
            total = state.scores[:, 0]
            scores = self.batch.intercept + (
                total if self.terms.trained == "additive" else total / len(self.plan.sites)
            )
        missing = int(self.batch.missing.sum())
        told = f"this site has no record of {missing} of these instances; the mean of its part was used there"
        findings = (told,) if missing else ()
        return SiteResult(outcome, reason, self.plan, scores=scores, findings=findings)
