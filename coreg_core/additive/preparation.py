r"""Prepare a site's rows for a training: features at each width, folds, the model alone, the smoother and the view.

The result depends on the site's arrays, the terms, and the federation's sums (units, others' scores). Source:
design, 7.1 to 7.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.additive.model.features import Candidate, Standardiser, candidates
from coreg_core.additive.model.grouping import Group, ResidualPolicy, members_of, near_groups
from coreg_core.additive.model.hyperparameters import untuned
from coreg_core.additive.model.local_fit import OwnFit, fit_alone
from coreg_core.additive.model.smoother import Coupling, Grouped, Smoother
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.model.view import AdditiveView, Hyper
from coreg_core.additive.question_types import folds_of
from coreg_core.errors import BadData, UsageError
from coreg_core.kernels.leave_one_out import RIDGES, weigh
from coreg_core.numerics.arrays import Arr, Ints


@dataclass(eq=False)
class Setting:
    """The site's choices from some of its rows: all of them, or those that a fold keeps."""

    rows: Int64[Ints, " k"]
    own: OwnFit | None = None
    smoother: Smoother | None = None
    view: AdditiveView | None = None
    start: Hyper = field(default_factory=lambda: Hyper(1.0, 1.0))
    slope: float = 0.0  # of the labels on the others' predictions before training, in its standard errors


class Preparation:
    """A site's features, folds, model alone, smoother and view, all before its first answer.

    Parameters
    ----------
    X
        labelled rows (n, d), n = 0 allowed.
    y
        labels (n,), in the site's own units.
    Z
        shared instances (m, d), in the federation's order.
    terms
        of the plan.
    name
        of the site; seeds its probes, and appears in errors.
    positions
        of each labelled row among the shared instances; needed by common rows.
    policy
        for its residuals.
    weights
        how much each labelled row counts (n,), above 0; only their ratios matter. A row of weight ω has the noise σ²/ω. None:
        all alike.

    Raises
    ------
    BadData
        shapes that do not fit, or weights that are not positive numbers.
    UsageError
        weights with grouped or open residuals.
    Refused
        the terms disclose more than the policy allows.
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
        weights: Float64[Arr, " n"] | None = None,
    ):
        if len(X) != len(y) or len(X) + len(Z) == 0:
            raise BadData(
                f"{name}: {len(X)} labelled rows, {len(y)} labels and {len(Z)} shared rows; a label a row, and a row."
            )
        if terms.rows == "common" and len(y) and positions is None:
            raise UsageError(
                f'{name}: rows="common" needs positions=, where each labelled row stands among the shared ones.'
            )
        if terms.residuals != "smoothed" and positions is not None and len(np.unique(positions)) < len(positions):
            raise BadData(
                f'{name}: an instance is labelled twice; residuals="{terms.residuals}" tells of instances: name each once.'
            )
        (policy or ResidualPolicy()).require(terms.residuals, terms.group_size, name)
        self.name, self.terms, self._X, self._y = name, terms, X, y
        self._roots = None if weights is None else self._roots_of(weights)
        self._positions = positions if terms.rows == "common" else None
        self._standardiser = Standardiser.of(X, Z)
        rows, shared = self._standardiser(X), self._standardiser(Z)
        self._candidates = candidates(
            rows,
            shared,
            kernel=terms.kernel,
            landmarks=terms.landmarks,
            seed=terms.seed,
            bandwidth=None if terms.bandwidth == "loo" else float(terms.bandwidth),
        )
        self._groups: Arr | None = None
        if terms.residuals == "grouped":
            self._groups = near_groups(rows, terms.group_size)
        elif terms.residuals == "open":
            self._groups = np.eye(len(y))
        self._n_unlabelled = len(Z)
        self._units = (0.0, 1.0)
        self._folds = folds_of(len(y), terms.folds, terms.seed)
        self._settings: dict[int | None, Setting] = {}
        self._left_out: dict[tuple[int, int], AdditiveView] = {}

    @property
    def n_labelled(self) -> int:
        """n."""
        return len(self._y)

    def _roots_of(self, weights: Float64[Arr, " n"]) -> Float64[Arr, " n"]:
        """√ω, with Σω = n."""
        if weights.shape != self._y.shape or not (np.isfinite(weights).all() and (weights > 0.0).all()):
            raise BadData(f"{self.name}: weights need one positive number for each of the {len(self._y)} labels.")
        if self.terms.residuals != "smoothed":
            raise UsageError(f'{self.name}: weights need residuals="smoothed", not "{self.terms.residuals}".')
        roots: Arr = np.sqrt(weights * (len(weights) / weights.sum())) if len(weights) else weights
        return roots

    def _roots_at(self, rows: Int64[Ints, " k"]) -> Float64[Arr, " k"] | None:
        return None if self._roots is None else self._roots[rows]

    @property
    def _hidden_among(self) -> int:
        """k: a mean over a group has σ²/k of a label's noise."""
        return self.terms.group_size if self.terms.residuals == "grouped" else 1

    def groups(self, keys: Sequence[str]) -> tuple[Group, ...]:
        """The groups whose labels go out as one mean; empty unless residuals are grouped. ``keys`` name the labelled rows."""
        if self._groups is None or self.terms.residuals != "grouped":
            return ()
        return members_of(self._groups, keys)

    @property
    def view(self) -> AdditiveView:
        """The algebra over all labelled rows, available once the smoother is chosen. For the oracle."""
        return self._view_of(None)

    @property
    def candidates(self) -> list[Candidate]:
        """The site's features at each width, on its rows and the shared ones. For the oracle, with `standardiser`."""
        return self._candidates

    @property
    def standardiser(self) -> Standardiser:
        """From the units of its columns to standard ones."""
        return self._standardiser

    @property
    def labels(self) -> Float64[Arr, " n"]:
        """y, in the site's own units."""
        return self._y

    @property
    def own_fit(self) -> OwnFit | None:
        """The model alone; None without labels."""
        return self._settings[None].own if None in self._settings else None

    @property
    def smoother(self) -> Smoother | None:
        """The smoother's features and η, with r² of the forecast before any training."""
        return self._settings[None].smoother if None in self._settings else None

    def _labels(self) -> Float64[Arr, " n"]:
        mean, deviation = self._units
        return (self._y - mean) / deviation

    def _kept(self, fold: int | None) -> Int64[Ints, " k"]:
        everything = np.arange(len(self._y))
        return everything if fold is None else np.setdiff1d(everything, self._folds[fold])

    def _begin(self, fold: int | None) -> Setting:
        """The choices that depend only on the kept rows and the units."""
        setting = Setting(self._kept(fold))
        setting.own = self._fit_alone(setting.rows)
        if setting.own is not None:
            noise = setting.own.noise
            setting.start = Hyper(noise / self._hidden_among, noise / setting.own.ridge)
            if not self.terms.tuning_steps:
                setting.start = untuned(setting.start)
        self._settings[fold] = setting
        return setting

    def _fit_alone(self, rows: Int64[Ints, " k"]) -> OwnFit | None:
        ridges = RIDGES if self.terms.ridge == "loo" else np.array([float(self.terms.ridge)])
        labelled = [c.labelled[rows] for c in self._candidates]
        return fit_alone(labelled, self._labels()[rows], ridges, self._roots_at(rows))

    def _alone_on_shared(self, own: OwnFit) -> Float64[Arr, " m"]:
        scores: Arr = own.intercept + self._candidates[own.candidate].shared @ own.w
        return scores

    def _set_view(self, setting: Setting) -> None:
        assert setting.smoother is not None
        features = self._features(setting)
        roots = self._roots_at(setting.rows)
        y = weigh(self._labels()[setting.rows], roots, centred=False)
        labelled = weigh(features.labelled[setting.rows], roots, centred=False)
        smoothed = setting.smoother.of(self._candidates[setting.smoother.candidate]).keep(setting.rows)
        coupling: Coupling = smoothed.weighed(roots)
        if self._groups is not None:
            # Groups are made once from all rows. A fold leaves whole groups out (`keep`), never single members.
            positions = self._positions if self._positions is not None else np.zeros(0, np.int64)
            coupling = Grouped(self._groups, positions, self._n_unlabelled)
            labelled, y = coupling.forward(features.shared), self._groups @ y
        setting.view = AdditiveView(y, labelled, features.shared, coupling, self.terms.random_intercept, roots)
        self._left_out = {}  # of the view that was

    def _features(self, setting: Setting) -> Candidate:
        return self._candidates[setting.own.candidate if setting.own else len(self._candidates) - 1]

    def _view_of(self, fold: int | None) -> AdditiveView:
        view = self._settings[fold].view if fold in self._settings else None
        if view is None:
            raise UsageError(
                f"{self.name}: asked for an answer before its smoother was chosen; begin with SCORE and SMOOTHER."
            )
        return view

    def _row_folds(self) -> list[Ints]:
        """Folds of the view's rows: labelled rows, or groups of them."""
        return folds_of(self.view.n_labelled, self.terms.folds, self.terms.seed)
