r"""A site's part in a training of the additive objective: an engine that answers, and its findings at the end.

The engine keeps factors and a few numbers between questions; both follow from the site's rows and the questions before.
"""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from coreg_core.additive.model.blend import Blend
from coreg_core.additive.model.grouping import Group, ResidualPolicy, require_same_groups
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_rules import position_after
from coreg_core.additive.question_types import Answer, Ask, Column, Operator, Question
from coreg_core.additive.site import AdditiveSite
from coreg_core.additive.site_state import SiteMemory
from coreg_core.computation.additive import AdditiveComputation, Forecasting, State, forecast_sentence
from coreg_core.computation.rounds import Round
from coreg_core.errors import BadData, CoregError, Refused
from coreg_core.evaluation.losses import estimate
from coreg_core.evaluation.probability import LEAST_TO_CALIBRATE, Probability, can_calibrate, fit_probability
from coreg_core.evaluation.recommendation import Choice, judge
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.machine.factoring import data_digest
from site_agent.machine.memory import Judged, SiteResult
from site_agent.machine.site_data import PrivateData


class AdditiveJob:
    """`site_agent.machine.job.Job`. This run discloses means over ``groups`` of labels; earlier runs disclosed ``told``.

    Raises
    ------
    CoregError
        these rows do not allow the plan. The coordinator receives the message, so it names no datum.
    """

    resumes = True

    def __init__(
        self,
        plan: Plan,
        terms: Additive,
        name: str,
        data: PrivateData,
        pin_threads: Callable[[int], int],
        policy: ResidualPolicy | None = None,
        told: frozenset[Group] = frozenset(),
        *,
        tells_forecast: bool = True,
    ):
        pin_threads(plan.iteration.threads)
        self.plan, self.terms, self.name, self.data = plan, terms, name, data
        data.require(plan)
        if (fault := task_fault(terms, data)) is not None:
            raise BadData(fault)
        self.n_unlabelled, self.ids_digest = data.n_shared, data.ids_digest
        self.data_digest = data_digest(data, plan.run)
        self._policy, self._tells_forecast = policy or ResidualPolicy(), tells_forecast
        try:
            self.begin(plan.sites)
            self.groups = self.engine.groups(data.row_keys) if data.row_keys else ()
            require_same_groups(self.groups, told, name)
        except MemoryError:
            raise BadData(f"not enough memory for {terms.landmarks} landmarks and {data.n_shared} instances.") from None
        except CoregError:
            raise
        except (np.linalg.LinAlgError, ValueError, OverflowError) as error:
            raise BadData(f'these rows cannot be prepared under kernel = "{terms.kernel}" ({error}).') from None

    def begin(self, sites: tuple[str, ...], key: bytes = b"") -> None:  # noqa: ARG002
        """Make a new engine, before its first question."""
        data = self.data
        with np.errstate(all="ignore"):
            self.engine = AdditiveSite(
                data.X,
                data.y,
                data.Z,
                self.terms,
                name=self.name,
                positions=data.positions,
                policy=self._policy,
                probe_secret=_probe_secret(data, self.terms),
                weights=data.weights,
            )

    def answer(self, asked: Round) -> tuple[Arr, tuple[float, ...]]:
        """See `Job.answer`."""
        question = asked.question
        if not isinstance(question, Question):
            raise Refused("a question of the agreement.")
        try:
            with np.errstate(all="ignore"):
                found = self._told(question)
        except np.linalg.LinAlgError as error:
            raise BadData(f"cannot be computed ({error}).") from None
        except MemoryError:
            raise BadData(f"not enough memory to answer with {self.n_unlabelled} instances.") from None
        if not (np.isfinite(found.scalars).all() and np.isfinite(found.vectors).all()):
            raise BadData("its own answer is not finite: features or label column are too large. Scale them.")
        self._position = position_after(self.terms, question)
        return found.vectors, tuple(found.scalars.tolist())

    def _told(self, question: Question) -> Answer:
        """The engine's answer. To FORECAST it adds the model that serves this site, or zeros if the policy withholds that.

        Raises
        ------
        BadData
            this site's operator exceeds the plan's bound. Checked before any answer uses it.
        """
        if question.ask is Ask.FIXED_POINT and self.engine.stretch(question) > self.terms.operator_norm_bound:
            raise BadData(
                "the operator norm of this site's part exceeds the plan's "
                f"operator_norm_bound = {self.terms.operator_norm_bound:g}. The federation's operator can raise the bound; "
                "the sums then lose digits."
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
        return Answer(answer.vectors, told if self._tells_forecast else np.zeros_like(told))

    # --- the end --------------------------------------------------------------------------------------------------

    def result(
        self,
        computation: AdditiveComputation,
        state: State,
        position: int,  # noqa: ARG002
        outcome: Outcome,
        reason: str,
    ) -> SiteResult:
        """The site's model, where the training has ended."""
        result = SiteResult(outcome, reason, self.plan)
        if (point := computation.point(state)) is None:
            return result
        forecast = state.sums if isinstance(state, Forecasting) else np.zeros(0)
        last = Operator(noise=self._position.noise, prior=self._position.prior)
        asked = Question(Ask.MODEL, point, (Column(operator=last),), "affine", self.terms.tuning_steps)
        self.engine.answer(asked)
        return replace(
            result,
            additive=self.engine.model,
            findings=(*self._findings(last), *([forecast_sentence(forecast)] if len(forecast) else [])),
            point=point,
            kept=SiteMemory.of(self.engine, self._position),
            judged=self._judged(forecast, last),
            probabilities=self._probabilities(),
        )

    def _probabilities(self) -> tuple[Probability, ...]:
        """Of the own model and of the local one, by own labels left out in turn; () for a regression."""
        model = self.engine.model
        if self.terms.task == "regression" or model is None:
            return ()
        own, alone = model.left_out
        labels = self.data.y[: len(own)]  # none with fewer labels than a model alone needs
        return fit_probability(own, labels), fit_probability(alone, labels)

    def _judged(self, forecast: Arr, last: Operator) -> Judged:
        """The folds' findings at this site and over the federation. An agent that restarted since has only the latter."""
        engine = self.engine
        federation = float("nan")
        if len(forecast) > 2 and forecast[2] and forecast[1] > 0.0:
            federation = float(np.sqrt(forecast[0] / forecast[1]) - 1.0)
        r2 = None if engine.smoother is None else engine.smoother.r2
        spread = engine.spread(last, self.terms.tuning_steps) if engine.n_labelled else None
        verdict = judge(engine.left_out, engine.n_labelled, federation)
        y = self.data.y
        baseline = None if verdict.alone is None else estimate((y - y.mean()) * (len(y) / (len(y) - 1)))
        return Judged(verdict, engine.left_out, spread, r2, federation, baseline)

    def _findings(self, last: Operator) -> tuple[str, ...]:
        """Findings of the training for the site's operator, as sentences."""
        engine = self.engine
        start, end = engine.hypers[0], engine.hypers[-1].times(last.noise, last.prior)
        told = [
            f"own part: prior variance {end.prior:.3g} (at the start {start.prior:.3g}), "
            "in units of the federation's label variance"
        ]
        if engine.n_labelled:
            told.insert(
                0,
                f"label noise of this site: {end.noise:.3g} of the federation's label variance "
                f"(alone, by leave-one-out: {start.noise:.3g}); near 1 or above, its labels carry almost no information",
            )
        if engine.model is not None and engine.model.alone is not None:
            told.insert(0, _of_blend(engine.model.blend))
        if self.terms.task == "classification" and not can_calibrate(self.data.y):
            told.insert(
                0,
                f"probabilities are hardly calibrated: this takes {LEAST_TO_CALIBRATE} labels, at least two of each class. With "
                "fewer, no error of this site's predictions can be judged",
            )
        return tuple(told)


def _of_blend(blend: Blend) -> str:
    """How the site's own model came about, and what to check."""
    if blend.opposed:
        return (
            "WARNING: this site's labels fall where the other sites predict larger ones, so its own model is the one that it "
            "trains alone; check that all sites have the same target, with the same unit and sign"
        )
    if blend.unexplained:
        return (
            "WARNING: neither this site's columns nor the other sites' predictions explain its labels. If they belong to other "
            "rows, they harm every site; check that each label stands beside its id"
        )
    if blend.weight == 0.0:
        return (
            "its own model is the one that it trains alone, because rows left out in turn show no gain from joining; "
            "scoring together is a separate choice"
        )
    return (
        f"joined model: {blend.weight:.0%} learnt together, {1.0 - blend.weight:.0%} local model, chosen by rows left out "
        "in turn; the first share is at most 80 %"
    )


def task_fault(terms: Additive, data: PrivateData) -> str | None:
    """Why the labels are not of the plan's task. The coordinator receives it, so it names no datum."""
    if terms.task == "regression" and data.positive:
        return (
            "this site declares a yes/no target (positive), and the plan's task is regression. The study needs "
            'task = "classification" in [model], or this site no `positive`.'
        )
    if terms.task == "classification" and not np.isin(data.y, (0.0, 1.0)).all():
        return (
            "the plan's task is classification, and this site's target has other values than 0 and 1. Its operator can name the "
            "positive value (positive in agent.toml, or --positive)."
        )
    return None


def _probe_secret(data: PrivateData, terms: Additive) -> bytes:
    """One secret for each operator. Averages over runs would cancel fresh signs, and known signs reveal the directions."""
    if not data.salt:
        return b""
    secret = hmac.new(data.salt, b"coreg probe signs" + repr(terms).encode(), hashlib.sha256)
    for array in data.arrays:
        secret.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return secret.digest()
