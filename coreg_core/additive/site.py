r"""One site of a training: it answers the coordinator's questions, one after another, and owns a model at the end.

    answer(question) -> two arrays that are only ever summed                               (`coreg_core.additive.question_types`)

Its state between questions follows from its data and the questions alone. So the same questions bring a returning site
to the same state, with the same bits. Source: design, 7.1 to 7.4.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.additive.model.blend import Blend, choose_blend, slope_on
from coreg_core.additive.model.cross_validation import LeftOut
from coreg_core.additive.model.expansion import Expansion, SiteModel, expansion, site_model
from coreg_core.additive.model.features import with_intercept
from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.model.hyperparameters import Traces, next_hyper, traces
from coreg_core.additive.model.local_fit import OwnFit
from coreg_core.additive.model.predictive_sd import Spread
from coreg_core.additive.model.smoother import choose_smoother, smoother_at
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.model.view import AdditiveView, Hyper
from coreg_core.additive.preparation import Preparation, Setting
from coreg_core.additive.question_types import (
    NO_SCALARS,
    NOTHING,
    Answer,
    Ask,
    Column,
    Operator,
    Question,
    probe_signs,
    right_sides,
    split,
)
from coreg_core.errors import UsageError
from coreg_core.kernels.leave_one_out import leave_one_out, weigh
from coreg_core.numerics.arrays import Arr, Ints


class AdditiveSite(Preparation):
    """A site's half of a training. Parameters and errors are `Preparation`'s.

    The probes' signs are drawn from ``probe_secret``, because a party that knows them derives every S_v from ΣS_vᵀE_v. Without
    a secret they follow from the name, for simulations.
    """

    def __init__(
        self,
        X: Float64[Arr, "n d"],
        y: Float64[Arr, " n"],
        Z: Float64[Arr, "m d"],
        terms: Additive,
        *,
        name: str = "site",
        positions: Int64[Ints, " n"] | None = None,
        policy: ResidualPolicy | None = None,
        probe_secret: bytes = b"",
        weights: Float64[Arr, " n"] | None = None,
    ):
        self._probe_seed = (terms.seed, *(probe_secret or name.encode()))
        super().__init__(X, y, Z, terms, name=name, positions=positions, policy=policy, weights=weights)
        self._hypers: list[Hyper] = []
        self._traces: list[Traces] = []
        self._probe_sum: Arr = np.zeros((self._n_unlabelled, terms.probes))
        self.model: SiteModel | None = None
        self.forecast: tuple[float, float, int] | None = None
        self.left_out: LeftOut | None = None

    # --- questions ----------------------------------------------------------------------------------------------------

    def answer(self, question: Question) -> Answer:
        """The answer to one question; asked again, the same bits."""
        match question.ask:
            case Ask.LABELS:
                total = self._y.sum() if self._roots is None else self._roots**2 @ self._y
                return Answer(NOTHING, np.array([float(len(self._y)), float(total)]))
            case Ask.SPREAD:
                apart = weigh(self._y - question.scalars[0], self._roots, centred=False)
                return Answer(NOTHING, np.array([float(np.sum(apart**2))]))
            case Ask.SCORE:
                return self._score(question)
            case Ask.SMOOTHER:
                return self._smooth(question)
            case Ask.FIXED_POINT:
                return self._fixed_point(question)
            case Ask.TRACES:
                return self._trace(question)
            case Ask.SMOOTHED:
                view, hyper = self.at(question.columns[0].operator, question.step)
                norm = view.coupling_norm / hyper.noise
                sizes = [norm * view.coupling_norm, norm * float(np.linalg.norm(view.level))]
                return Answer(view.smoothed(question.targets, hyper), np.array(sizes))
            case Ask.GRADIENT:
                return self._gradient(question)
            case Ask.JOINT:
                return self._joint(question)
            case Ask.FORECAST:
                return self._forecast(question)
            case Ask.MODEL:
                self.model = self._model(question)
                return Answer(NOTHING, NO_SCALARS)
            case Ask.TOGETHER:
                raise UsageError(
                    f"{self.name}: scores are asked of a model that is on the disk, and not in a training."
                )

    @property
    def hypers(self) -> list[Hyper]:
        """σ² and τ² of every step so far, in the federation's units; its start first."""
        return list(self._hypers)

    def to_arrays(self) -> dict[str, Arr]:
        """The site's knowledge of a training so far, for its own disk: a few numbers, and Q_E."""
        chosen = self.smoother
        return {
            "units": np.array(self._units if None in self._settings else []),
            "smoother": np.array([] if chosen is None else self._chosen(None)),
            "hypers": np.array([[h.noise, h.prior] for h in self._hypers]).reshape(-1, 2),
            "traces": np.array([[t.weight, t.gamma, t.residual, t.kappa] for t in self._traces]).reshape(-1, 4),
            "probe_sum": self._probe_sum,
            "folds": np.array(self._chosen_in_folds()).reshape(-1, 4),
        }

    def _chosen(self, fold: int | None) -> list[float]:
        """The smoother of a fold, and the slope."""
        setting = self._settings[fold]
        assert setting.smoother is not None
        return [float(setting.smoother.candidate), setting.smoother.eta, setting.smoother.r2, setting.slope]

    def _chosen_in_folds(self) -> list[list[float]]:
        """The smoother of each fold of a forecast, once all are chosen."""
        there = [fold for fold in range(self.terms.folds) if fold in self._settings]
        found = [self._chosen(fold) for fold in there if self._settings[fold].smoother is not None]
        return found if len(found) == self.terms.folds else []

    def restore(self, arrays: Mapping[str, Arr]) -> None:
        """Restore the state of `to_arrays`: on the same data and machine, the next answers have the same bits."""
        self._probe_sum = arrays["probe_sum"]
        if len(arrays["units"]):
            self._score(Question(Ask.SCORE, NOTHING, (Column(),), scalars=tuple(arrays["units"].tolist())))
        if not len(arrays["smoother"]):
            return
        self._choose_again(None, arrays["smoother"].tolist())
        self._hypers = [Hyper(noise, prior) for noise, prior in arrays["hypers"].tolist()]
        self._traces = [Traces(*row) for row in arrays["traces"].tolist()]
        for fold, chosen in enumerate(arrays["folds"].tolist() if "folds" in arrays else []):
            self._begin(fold)
            self._choose_again(fold, chosen)

    def _choose_again(self, fold: int | None, chosen: list[float]) -> None:
        candidate, eta, r2, slope = chosen
        setting = self._settings[fold]
        setting.smoother, setting.slope = smoother_at(self._candidates, int(candidate), eta, r2), slope
        self._set_view(setting)

    # --- preparation -------------------------------------------------------------------------------------------------

    def _score(self, question: Question) -> Answer:
        self._units = (question.scalars[0], question.scalars[1])
        scores, weights = np.zeros((self._n_unlabelled, len(question.columns))), np.zeros(len(question.columns))
        for j, column in enumerate(question.columns):
            setting = self._begin(column.operator.fold)
            if setting.own is not None:
                weights[j] = 1.0 / setting.own.noise
                scores[:, j] = weights[j] * self._alone_on_shared(setting.own)
        return Answer(scores, weights)

    def _smooth(self, question: Question) -> Answer:
        for j, column in enumerate(question.columns):
            fold = column.operator.fold
            # A site that returned in between has only its saved state, from which a fold begins as before.
            setting = self._begin(fold) if fold is not None and fold not in self._settings else self._settings[fold]
            others, weight = question.targets[:, j], question.scalars[j]
            if setting.own is not None:
                others = others - self._alone_on_shared(setting.own) / setting.own.noise
                weight -= 1.0 / setting.own.noise
            heard = weight > 1e-9 * question.scalars[j]
            last = len(self._candidates) - 1
            setting.smoother = choose_smoother(self._candidates, others / weight if heard else None, default=last)
            if heard and setting.own is not None:
                reading = self._candidates[setting.smoother.candidate]
                apart = others
                guess = reading.labelled[setting.rows] @ setting.smoother.coefficients(reading, apart)
                setting.slope = slope_on(guess, self._labels()[setting.rows], self._roots_at(setting.rows))
            self._set_view(setting)
        if question.columns[0].operator.fold is not None:
            return Answer(NOTHING, NO_SCALARS)
        self._hypers, self._traces = [self._settings[None].start], []
        return Answer(self.view.coupling.backward(self.signs), NO_SCALARS)

    @property
    def signs(self) -> Float64[Arr, "n p"]:
        """E_v, the probes of this site; never sent."""
        return probe_signs(self.view.n_labelled, self.terms.probes, self._probe_seed)

    # --- the fixed point ----------------------------------------------------------------------------------------------

    def at(self, operator: Operator, step: int) -> tuple[AdditiveView, Hyper]:
        """The algebra, noise and prior of one operator after that many tuning steps, to answer a question."""
        if step >= len(self._hypers):
            made = f"it has made {len(self._hypers) - 1}" if self._hypers else "its smoother is not chosen"
            raise UsageError(
                f"{self.name}: asked at tuning step {step}, and {made}; begin with SCORE and SMOOTHER, or repeat the questions "
                "from the last one it answered."
            )
        hyper = self._hypers[step]
        if operator.fold is None:
            return self.view, hyper.times(operator.noise, operator.prior)
        if operator.refit:
            start, first = self._settings[operator.fold].start, self._hypers[0]
            kept = start.times(hyper.noise / first.noise, hyper.prior / first.prior)
            return self._view_of(operator.fold), kept.times(operator.noise, operator.prior)
        key = (operator.fold, step)
        if key not in self._left_out:
            rows = np.setdiff1d(np.arange(self.view.n_labelled), self._row_folds()[operator.fold])
            self._left_out[key] = self.view.keep(rows)
        return self._left_out[key], hyper.times(operator.noise, operator.prior)

    def stretch(self, question: Question) -> float:
        """The largest κ among the operators of this question (`AdditiveView.stretch`)."""
        if question.part == "affine":
            self._tune_to(question)
        operators = dict.fromkeys(c.operator for c in question.columns)
        return max(view.stretch(hyper) for view, hyper in (self.at(o, question.step) for o in operators))

    def _fixed_point(self, question: Question) -> Answer:
        if question.part == "affine":
            self._tune_to(question)
        out = np.empty_like(question.targets)
        for operator in dict.fromkeys(
            c.operator for c in question.columns
        ):  # columns of one operator are answered together
            where = [j for j, c in enumerate(question.columns) if c.operator == operator]
            view, hyper = self.at(operator, question.step)
            labels = None
            if question.part == "affine":
                probes = any(question.columns[j].kind == "probe" for j in where)
                labels = right_sides([question.columns[j] for j in where], view.y, self.signs if probes else None)
            out[:, where] = view.answer(np.ascontiguousarray(question.targets[:, where]), labels, hyper)
        return Answer(out, NO_SCALARS)

    def _tune_to(self, question: Question) -> None:
        # A tuning step is made at its first question, with the federation's multiplier g.
        if question.step == len(self._hypers) and len(self._traces) >= question.step >= 1:
            old, n = self._hypers[-1], self.view.n_labelled
            self._hypers.append(next_hyper(self._traces[-1], old, self._hypers[0], question.scalars[0], n))

    def _trace(self, question: Question) -> Answer:
        if question.aside is not None:
            self._probe_sum = question.aside
        found = traces(self.view, self._hypers[question.step], question.targets, self.signs, self._probe_sum)
        self._traces = [*self._traces[: question.step], found]
        return Answer(NOTHING, np.array([found.weight / self._hypers[0].prior, found.gamma]))

    def _gradient(self, question: Question) -> Answer:
        view, hyper = self.at(question.columns[0].operator, question.step)
        norm = view.gradient_norm(question.targets[:, 0], question.targets[:, 1], hyper, *question.scalars)
        return Answer(NOTHING, np.array([norm, view.reach(hyper)]))

    # --- results ------------------------------------------------------------------------------------------------------

    def _models(
        self, x: Float64[Arr, "r 1"], operator: Operator, step: int
    ) -> tuple[Expansion, Expansion, float, Blend, Arr]:
        """(joined, part, a, blend, left out) in the federation's units; a with the site's own intercept."""
        setting = self._settings[operator.fold if operator.refit else None]
        view, hyper = self.at(operator, step)
        assert setting.smoother is not None
        s, _, a = split(x)
        alpha, w = view.solve(x, view.y[:, None], hyper)
        intercept = float(a[0] + view.own_intercept(alpha)[0])
        features, reading = self._features(setting), self._candidates[setting.smoother.candidate]
        others = s[:, 0] - view.shared @ w[:, 0]
        mean = float(others.mean()) if len(others) else 0.0
        part = expansion(self._standardiser, features.features, w[:, 0])
        coefficients = setting.smoother.coefficients(reading, others)
        smooth = expansion(self._standardiser, reading.features, coefficients, mean)
        fixed = float(a[0]) + mean + reading.labelled[setting.rows] @ coefficients
        return part.plus(smooth).scaled(1.0, intercept), part, intercept, *self._blend(setting, hyper, fixed)

    def _blend(self, setting: Setting, hyper: Hyper, fixed: Float64[Arr, " k"]) -> tuple[Blend, Float64[Arr, "2 n"]]:
        """By rows left out in turn, and predictions of own and alone there; ``fixed``: a and the others' parts at the rows."""
        if setting.own is None:
            return Blend(1.0), np.zeros((2, 0))
        features, labels = self._features(setting).labelled[setting.rows], self._labels()[setting.rows]
        roots = self._roots_at(setting.rows)
        part = with_intercept(features, self.terms.random_intercept, hyper.prior)
        ridge = np.array([hyper.noise * self._hidden_among / hyper.prior])
        [joined] = leave_one_out(part, labels - fixed, ridge, intercept=False, roots=roots)
        [alone] = leave_one_out(features, labels, np.array([setting.own.ridge]), roots=roots)
        blend = choose_blend(joined, alone, labels, setting.slope, self.terms.aim, roots)
        own = blend.weight * joined + (1.0 - blend.weight) * alone
        return blend, labels - np.array([own, alone]) / (1.0 if roots is None else roots)

    def spread(self, operator: Operator, step: int) -> Spread:
        """The own model's stated deviation, in the units of its labels; not calibrated (`coreg_core.evaluation.intervals`)."""
        view, hyper = self.at(operator, step)
        features = self._features(self._settings[None]).features
        return Spread.of(self._standardiser, features, view, hyper).scaled(self._units[1])

    def _alone(self, own: OwnFit) -> Expansion:
        return expansion(self._standardiser, self._candidates[own.candidate].features, own.w, own.intercept)

    def _model(self, question: Question) -> SiteModel:
        joined, part, a, blend, left_out = self._models(question.targets, question.columns[0].operator, question.step)
        own = self._settings[None].own
        return site_model(joined, part, a, None if own is None else self._alone(own), blend, left_out, self._units)

    def _joint(self, question: Question) -> Answer:
        """Σ (y − a − s)²/(n σ₀²) over the rows that each column's fold left out: the joint score, read at own labelled rows."""
        errors = np.zeros(len(question.columns))
        if self._positions is not None and len(self._y):
            s, _, a = split(question.targets)
            for j, column in enumerate(question.columns):
                rows = self._row_folds()[column.operator.fold or 0]
                if self._groups is not None:
                    rows = np.flatnonzero(self._groups[rows].any(axis=0))
                view, hyper = self.at(column.operator, question.step)
                alpha, _ = view.solve(question.targets[:, j : j + 1], view.y[:, None], hyper)
                intercept = a[j] + view.own_intercept(alpha)[0]
                residual = self._labels()[rows] - intercept - s[self._positions[rows], j]
                residual = weigh(residual, self._roots_at(rows), centred=False)
                errors[j] = float(residual @ residual) / (len(self._y) * self._settings[None].start.noise)
        return Answer(NOTHING, errors)

    def _forecast(self, question: Question) -> Answer:
        """(Σe² joined, Σe² alone, rows) over the rows that the folds left out; both chosen again in every fold."""
        found = LeftOut.nothing()
        for j, column in enumerate(question.columns):
            found = found.plus(self._left_out_by(question, j, column.operator))
        roots = self._roots_at(found.rows)
        joined, alone = (weigh(found.labels - each, roots, centred=False) for each in (found.own, found.alone))
        self.forecast = (float(joined @ joined), float(alone @ alone), len(found.rows))
        mean, deviation = self._units
        self.left_out = found.scaled(deviation, mean)
        return Answer(NOTHING, np.array([self.forecast[0], self.forecast[1], float(len(found.rows))]))

    def _left_out_by(self, question: Question, j: int, operator: Operator) -> LeftOut:
        """One fold's rows, in the federation's units."""
        assert operator.fold is not None
        setting, rows = self._settings[operator.fold], self._folds[operator.fold]
        if setting.own is None or len(rows) == 0:
            return LeftOut.nothing()
        joined, _, a, blend, _ = self._models(question.targets[:, j : j + 1], operator, question.step)
        alone = self._alone(setting.own).predict(self._X[rows])
        own = blend.weight * joined.predict(self._X[rows]) + (1.0 - blend.weight) * alone
        together = np.full(len(rows), np.nan)
        if self._positions is not None:
            together = a + question.targets[self._positions[rows], j]
        view, hyper = self.at(operator, question.step)
        spread = Spread.of(self._standardiser, self._features(setting).features, view, hyper)
        return LeftOut(rows, self._labels()[rows], alone, own, together, spread.deviations(self._X[rows]))
