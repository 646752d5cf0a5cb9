r"""A site's part in one training of the additive objective: begun by a plan, changed by each question, over with `Finished`.

Held to the plan like the agreement's (jobs/training.py): every question must be what the schedule asks at that place, a repeated
one gets the same answer, another one under an old number is refused. What the site has to remember between questions are a few
numbers (`SiteMemory`); they go into the ledger with each answer, so an agent in another process is where this one was. The
engine keeps factors and those numbers; everything else is a frozen value.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from coreg_core.additive.model.expansion import SiteModel
from coreg_core.additive.model.grouping import Group, ResidualPolicy, require_same_groups
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_rules import answer_bounds, position_after, question_fault
from coreg_core.additive.question_types import Answer, Ask, Column, Question
from coreg_core.additive.site import AdditiveSite
from coreg_core.additive.site_state import SiteMemory
from coreg_core.errors import BadData, CoregError
from coreg_core.evaluation.recommendation import Choice, judge
from coreg_core.protocol.messages import Ask as AgreementAsk
from coreg_core.protocol.messages import Fault, Finished, Inquiry, Masked, PlanAccepted, Share
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_core.protocol.vectors import Vector
from site_agent.machine.factoring import data_digest
from site_agent.machine.masks import NO_KEYS, Masks, Offer, in_the_clear, masked, scale_fault
from site_agent.machine.memory import Judged, Remembered, SiteResult, Verified
from site_agent.machine.site_data import PrivateData


@dataclass(frozen=True)
class AdditiveTraining:
    """See the module's docstring. ``last`` is the last question and its answer; ``groups`` those whose means this run tells."""

    plan: Plan
    terms: Additive
    data: PrivateData
    engine: AdditiveSite
    acceptance: PlanAccepted
    most: int
    remembered: Remembered
    groups: tuple[Group, ...] = ()
    tells_forecast: bool = True
    masks: Masks | None = None
    last: tuple[Inquiry, Share | Masked] | None = None
    faults: int = 0
    result: SiteResult | None = None

    @property
    def over(self) -> bool:
        """The run has ended for this site."""
        return self.result is not None

    # --- questions ------------------------------------------------------------------------------------------------

    def under(self, masks: Masks) -> "AdditiveTraining":
        return replace(self, masks=masks)

    def answer(self, inquiry: AgreementAsk | Inquiry) -> tuple["AdditiveTraining", Share | Masked | Fault]:
        """The answer to one question, or why there is none."""
        number = (inquiry.question, inquiry.attempt)
        if not isinstance(inquiry, Inquiry):
            reason = "nothing that the plan's objective asks: a question of the agreement."
            return replace(self, faults=self.faults + 1), Fault(inquiry.run, *number, reason)
        question = inquiry.asked()
        if (objection := self._unanswerable(inquiry, question)) is not None:
            return replace(self, faults=self.faults + 1), Fault(inquiry.run, *number, objection)
        if self.last is not None and self.last[0] == inquiry:
            return self._counted(inquiry, question, self.last[1])
        try:
            with np.errstate(all="ignore"):
                share = Share.of(inquiry, self._answer(question))
            told = self._told(inquiry, share)
        except CoregError as error:
            return self, Fault(inquiry.run, *number, str(error))
        except np.linalg.LinAlgError as error:
            return self, Fault(inquiry.run, *number, f"cannot be computed ({error}).")
        except MemoryError:
            return self, Fault(inquiry.run, *number, f"not enough memory to answer with {len(self.data.Z)} instances.")
        if not (np.isfinite(share.scalars).all() and (share.values is None or share.values.finite)):
            reason = "its own answer is not finite: features or label column are too large. Scale them."
            return self, Fault(inquiry.run, *number, reason)
        return self._counted(inquiry, question, told)

    def _answer(self, question: Question) -> Answer:
        """The engine's; to FORECAST, which model serves this site, or nothing at all where its policy keeps that.

        Raises
        ------
        BadData
            this site's operator is not within the plan's bound: before anything is answered through it.
        """
        if question.ask is Ask.FIXED_POINT and self.engine.stretch(question) > self.terms.operator_norm_bound:
            raise BadData(
                f"this site's part answers more strongly than "
                f"operator_norm_bound={self.terms.operator_norm_bound:g} of the plan allows: the "
                "federation's operator may raise it, at the cost of digits of the sums."
            )
        answer = self.engine.answer(question)
        if question.ask is not Ask.FORECAST:
            return answer
        served = np.zeros(3)
        if (found := self.engine.left_out) is not None and len(found.rows):
            verdict = judge(found, self.engine.n_labelled)
            together = verdict.score is Choice.TOGETHER
            served[2 if together else 1 if verdict.own is Choice.JOINED else 0] = 1.0
        told = np.concatenate([answer.scalars, served])
        return Answer(answer.vectors, told if self.tells_forecast else np.zeros_like(told))

    def _told(self, inquiry: Inquiry, share: Share) -> Share | Masked:
        values, scalars = share.answer().vectors, share.scalars
        finite = bool(np.isfinite(scalars).all() and np.isfinite(values).all())
        if not finite:
            return share  # said below, in words
        try:
            if self.plan.masked:
                assert self.masks is not None, "judged before"
                return masked(self.masks, inquiry, inquiry.digest, values, scalars)
            rounded = in_the_clear(values, inquiry)
        except BadData:
            raise BadData(
                f"this site's answer is larger than operator_norm_bound={self.terms.operator_norm_bound:g} of "
                f"the plan allows, and is not "
                "summed: the federation's operator may raise it."
            ) from None
        return replace(share, values=Vector(rounded) if rounded.size else None)

    def _counted(
        self, inquiry: Inquiry, question: Question, told: Share | Masked
    ) -> tuple["AdditiveTraining", Share | Masked]:
        before, number = self.remembered, (inquiry.question, inquiry.attempt)
        model = inquiry.kind is Ask.MODEL and inquiry.targets is not None
        verified = Verified(inquiry.targets.digest, ()) if model and inquiry.targets is not None else None
        here = position_after(self.terms, question)
        if before.kept is not None and before.asked and number < max(before.asked):
            here = before.kept.position  # an old question once more: what may come next follows from the newest
        kept, may_change = SiteMemory.of(self.engine, here), self.plan.privacy.membership_changes
        tells = inquiry.kind is Ask.FIXED_POINT and inquiry.part == "affine"
        fresh = tuple(group for group in self.groups if tells and group not in before.groups)
        told_of = {"groups": before.groups.union(fresh), "residuals": self.terms.residuals, "fresh": fresh}
        among = {"participants": self._participants, "may_change": may_change}
        remembered = before.after(number, inquiry.digest, verified, kept=kept, **told_of, **among)
        return replace(self, remembered=remembered, last=(inquiry, told)), told

    @property
    def _participants(self) -> tuple[str, ...]:
        return () if self.masks is None else self.masks.roster.sites

    def _unanswerable(self, inquiry: Inquiry, question: Question) -> str | None:
        if self.over:
            return "the run is over for this site."
        if not (np.isfinite(inquiry.scalars).all() and (inquiry.targets is None or inquiry.targets.finite)):
            return "numbers that are not finite."
        number = (inquiry.question, inquiry.attempt)
        # Of an answered question too: its answer, given again without masks, would be one site's alone.
        if self.plan.masked and (self.masks is None or self.masks.roster.attempt != inquiry.attempt):
            return f"no roster of attempt {inquiry.attempt} came before it, so nobody's masks would cancel."
        asked, kept = self.remembered.asked, self.remembered.kept
        if number in asked:  # the same again: a coordinator whose power failed may ask its last questions anew
            if asked[number] != inquiry.digest:
                return "the same question number came with another question; only the first was answered."
        else:
            if asked and number < max(asked):
                return f"question {inquiry.question} is older than the last answered, {max(asked)[0]}."
            last, attempt = (max(asked), max(asked)[1]) if asked else (number, inquiry.attempt)
            same_sites = self.plan.masked and self.remembered.participants == self._participants
            if not attempt <= inquiry.attempt or (inquiry.attempt > self._most_attempts and not same_sites):
                return f"attempt {inquiry.attempt}, which no membership of this plan leads to after attempt {attempt}."
            # Another membership begins the training anew; the same sites under new keys go on, from the open question.
            before = None if kept is None or (attempt < inquiry.attempt and not same_sites) else kept.position
            again = same_sites and inquiry.question == last[0] and asked.get(last) == inquiry.digest
            if not again and (reason := question_fault(self.terms, len(self.data.Z), before, question)):
                return f"nothing that the plan's training asks: {reason}"
            units = self.engine.to_arrays()["units"].tolist()
            if before is not None and before.ask is Ask.MODEL and list(question.scalars) != units:
                return "folds in other units than the training's."
            bounds = answer_bounds(self.terms, len(self.data.Z), question)
            needed = self.plan.masked or inquiry.exponents
            if needed and (reason := scale_fault(inquiry.exponents, bounds, max(1, len(self._participants)))):
                return reason
        if self.remembered.answered >= self.most:
            return (
                f"more than {self.most} questions, the most that this agent answers to a plan of "
                f"max_rounds={self.terms.max_rounds} on these instances, over all runs; its ledger counts them. "
                "Its operator may allow more (max_questions in policy.toml)."
            )
        return None

    @property
    def _most_attempts(self) -> int:
        """Every site may be lost once, and taken back and lost again as often as the plan says."""
        terms = self.plan.membership
        return len(terms.sites) * (1 + 2 * terms.max_rejoins)

    # --- the end --------------------------------------------------------------------------------------------------

    def finish(self, finished: Finished) -> tuple["AdditiveTraining", str | None]:
        """The site's model, or what the plan does not allow about this end (a breach of protocol)."""
        verified = {v.targets for v in self.remembered.verified}
        model: SiteModel | None = None
        if finished.targets is not None:
            if finished.targets.digest not in verified or finished.columns:
                return self, "a model at another point than the last that this site was asked for."
            model = self._model(finished)
        elif finished.outcome is Outcome.CONVERGED and verified:
            return self, "a run that converged without a model for a site that answered its questions."
        result = SiteResult(finished.outcome, finished.reason, self.plan, (), None, 0.0, 1.0)
        if model is not None:
            point, kept = finished.targets, self.remembered.kept
            result = replace(result, additive=model, findings=self._findings(), point=point, kept=kept)
            result = replace(result, judged=self._judged(finished))
        return replace(self, result=result), None

    def _judged(self, finished: Finished) -> Judged:
        """What folds found at this site, and over the federation; an agent that was started again since has the latter alone."""
        kept, engine = self.remembered.kept, self.engine
        assert kept is not None
        federation = float("nan")
        if len(finished.forecast) > 2 and finished.forecast[2] and finished.forecast[1] > 0.0:
            federation = float(np.sqrt(finished.forecast[0] / finished.forecast[1]) - 1.0)
        r2 = None if engine.smoother is None else engine.smoother.r2
        spread = engine.spread(kept.position.operator, self.terms.tuning_steps) if engine.n_labelled else None
        verdict = judge(engine.left_out, engine.n_labelled, federation)
        return Judged(verdict, engine.left_out, spread, r2, federation)

    def _model(self, finished: Finished) -> SiteModel | None:
        kept = self.remembered.kept
        assert finished.targets is not None
        assert kept is not None
        columns = (Column(operator=kept.position.operator),)
        self.engine.answer(Question(Ask.MODEL, finished.targets.values, columns, "affine", self.terms.tuning_steps))
        return self.engine.model

    def _findings(self) -> tuple[str, ...]:
        """What the site's operator should know of the training, in words."""
        engine = self.engine
        kept = self.remembered.kept
        assert kept is not None
        position = kept.position
        start, end = engine.hypers[0], engine.hypers[-1].times(position.noise, position.prior)
        told = [
            f"own part: prior variance {end.prior:.3g} (it began with {start.prior:.3g}), "
            "in units of the federation's label variance"
        ]
        if engine.n_labelled:
            told.insert(
                0,
                f"label noise of this site: {end.noise:.3g} of the federation's label variance "
                f"(alone, by leave-one-out: {start.noise:.3g}); near 1 or above, its labels tell next to nothing",
            )
        return tuple(told)


def begin(
    plan: Plan,
    terms: Additive,
    name: str,
    data: PrivateData,
    pin_threads: Callable[[int], int],
    remembered: Remembered,
    most: int,
    policy: ResidualPolicy | None = None,
    tells_forecast: bool = True,
    offer: Offer = NO_KEYS,
) -> AdditiveTraining:
    """Prepare the site's features under the plan, and be where its ledger says that it was.

    Raises
    ------
    CoregError
        these rows do not allow it; the message is what the coordinator hears, so it names no datum.
    """
    threads = pin_threads(plan.iteration.threads)
    try:
        with np.errstate(all="ignore"):
            engine = AdditiveSite(
                data.X, data.y, data.Z, terms, name=name, positions=data.positions, policy=policy or ResidualPolicy()
            )
            groups = engine.groups(data.row_keys) if data.row_keys else ()
            require_same_groups(groups, remembered.groups, name)
            if remembered.kept is not None:
                remembered.kept.restore(engine)
    except MemoryError:
        raise BadData(f"not enough memory for {terms.landmarks} landmarks and {len(data.Z)} instances.") from None
    except CoregError:
        raise
    except (np.linalg.LinAlgError, ValueError, OverflowError) as error:
        raise BadData(f"these rows cannot be prepared under kernel={terms.kernel!r} ({error}).") from None
    digest = data_digest(data, plan.run)
    remembered = replace(remembered, residuals=terms.residuals)
    # b_v and ‖y_v‖² have no meaning here, and are not told: the labels' moments are sums that LABELS and SPREAD ask for.
    about = (plan.run, plan.digest, len(data.Z), data.ids_digest, digest, 0.0, 0.0, threads)
    accepted = PlanAccepted(*about, key=offer.key, signature=offer.signature, identity=offer.identity)
    return AdditiveTraining(plan, terms, data, engine, accepted, most, remembered, groups, tells_forecast)
