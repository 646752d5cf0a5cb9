r"""A site's features of its own columns, and the local model that its own labels give.

    x → standardised, clipped → k(x, landmarks) K^{-1/2} → centred over the common rows → principal
    components

The functions of the local model are two more directions before the components are taken, so what
matters to the site's own labels is among the first. Source: Schölkopf et al. (1998) for kernel PCA,
Williams and Seeger (2001) for landmarks, Breiman (2001).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.arrays import Arr, Ints, block_rows
from coreg_core.kernels import Gaussian
from coreg_core.objectives.additive import MOST_FEATURES, MOST_OWN, KernelName
from coreg_core.selection import RIDGES, left_out, widths
from coreg_core.spread import mean_and_deviation

# The narrower width, if its left-out error is below this share of that of the wider one.
NARROW = 0.95
LANDMARKS = 100
CLIP = 4.0
DIRECTION = 0.2  # weight of the local model's functions among the features
TREES = 50
LEAST_IN_LEAF = 2
LABELS_FOR_A_FOREST = 40
TO_THE_MIDDLE = 20.0  # the weight of the forest is pulled to 1/2 by so many labels
LEAST_LABELS = 3  # of a local model


@dataclass(frozen=True, eq=False)
class SiteRows:
    """Common rows (in one order everywhere), then private ones; labels, and the places ``own`` of
    labelled rows, in ascending order: all sites list the common rows in it.
    """

    X: Float64[Arr, "n p"]
    own: Int64[Ints, " l"]
    y: Float64[Arr, " l"]

    def __post_init__(self) -> None:
        if (np.diff(self.own) <= 0).any():
            raise ValueError("the places of labelled rows are not in ascending order.")


def sizes(n_labelled: int, n_rows: int, rows_per_feature: int = 8) -> tuple[int, int]:
    """(d, k): how many features enter the sums, and how many a site keeps for itself, of N labelled
    of so many common rows.
    """
    few = min(n_labelled, n_rows)
    d = int(np.clip(round(few / rows_per_feature), min(5, max(n_labelled // 2, 1)), MOST_FEATURES))
    return d, int(np.clip(n_rows // 10, d, MOST_OWN))


@dataclass(frozen=True, eq=False)
class FeatureBasis:
    """Features before the principal components: standardised columns, or the kernel at landmarks
    times K^{-1/2}.
    """

    mean: Float64[Arr, " p"]
    deviation: Float64[Arr, " p"]
    landmarks: Float64[Arr, "l p"]
    width: float  # 0: linear
    transform: Float64[Arr, "l r"]
    shift: Float64[Arr, " r"]

    def standardised(self, X: Float64[Arr, "n p"]) -> Float64[Arr, "n p"]:
        """Columns less their mean, in deviations, at most `CLIP`."""
        return np.clip((X - self.mean) / self.deviation, -CLIP, CLIP)

    def __call__(self, X: Float64[Arr, "n p"]) -> Float64[Arr, "n r"]:
        """Centred features."""
        out = np.empty((len(X), len(self.shift)))
        step = block_rows(max(len(self.landmarks), 1))
        for start in range(0, len(X), step):
            S = self.standardised(X[start : start + step])
            if self.width:
                S = Gaussian(self.width)(S, self.landmarks) @ self.transform
            np.subtract(S, self.shift, out=out[start : start + step])
        return out


@dataclass(frozen=True, eq=False)
class Forest:
    """A regression forest as plain arrays: ``children`` of a leaf are the leaf itself."""

    roots: Int64[Ints, " t"]
    column: Int64[Ints, " q"]
    threshold: Float64[Arr, " q"]
    children: Int64[Ints, "q 2"]  # at most the threshold; above it
    value: Float64[Arr, " q"]

    def predict(self, S: Float64[Arr, "n p"]) -> Float64[Arr, " n"]:
        """The mean of the trees; all rows go down all trees, one split at a time.

        As in scikit-learn, only the rows are rounded to float32.
        """
        out = np.empty(len(S))
        step = block_rows(len(self.roots))
        for start in range(0, len(S), step):
            rows = S[start : start + step].astype(np.float32).astype(np.float64)
            out[start : start + step] = self.value[self._leaves(rows)].mean(axis=1)
        return out

    def _leaves(self, rows: Float64[Arr, "n p"]) -> Int64[Ints, "n t"]:
        """The leaf of each row in each tree."""
        first = rows.shape[1] * np.arange(len(rows))[:, None]  # of each row, among all cells
        cells = rows.ravel()
        children = self.children.ravel()
        node = np.tile(self.roots, (len(rows), 1))
        while True:
            above = cells.take(first + self.column.take(node)) > self.threshold.take(node)
            below = children.take(2 * node + above)
            if (below == node).all():
                return node
            node = below


def grown(
    S: Float64[Arr, "n p"],
    y: Float64[Arr, " n"],
    seed: int,
    *,
    trees: int,
    least_in_leaf: int = LEAST_IN_LEAF,
    columns: float = 1.0,
) -> tuple[Forest, Float64[Arr, " n"]]:
    """A random forest by scikit-learn, and its out-of-bag prediction of each row; ``columns``: the
    share that a split tries.
    """
    from sklearn.ensemble import RandomForestRegressor

    forest_model = RandomForestRegressor(
        trees,
        min_samples_leaf=least_in_leaf,
        max_features=columns,
        oob_score=True,
        random_state=seed,
    ).fit(S, y)
    grown_trees = [each.tree_ for each in forest_model.estimators_]
    roots = np.cumsum([0, *(tree.node_count for tree in grown_trees)])
    children = []
    for tree, root in zip(grown_trees, roots.tolist(), strict=False):
        below = np.column_stack([tree.children_left, tree.children_right])
        children.append(np.where(below < 0, np.arange(len(below))[:, None], below) + root)
    forest = Forest(
        roots[:-1].astype(np.int64),
        np.concatenate([np.maximum(tree.feature, 0) for tree in grown_trees]).astype(np.int64),
        np.concatenate([tree.threshold for tree in grown_trees]),
        np.concatenate(children).astype(np.int64),
        np.concatenate([tree.value[:, 0, 0] for tree in grown_trees]),
    )
    return forest, np.asarray(forest_model.oob_prediction_, dtype=np.float64)


def ridge_fit(
    Phi: Float64[Arr, "n r"], y: Float64[Arr, " n"], ridges: Float64[Arr, " g"] = RIDGES
) -> tuple[Float64[Arr, " r"], float, Float64[Arr, " n"]]:
    """Ridge regression with a free intercept, at the ridge of least left-out error: weights,
    intercept, left-out residuals (n,).
    """
    mean = Phi.mean(0)
    t = y - y.mean()
    U, s, Vt = np.linalg.svd(Phi - mean, full_matrices=False)
    errors = left_out(U, s**2, t, ridges, intercept=True)
    best = int(np.argmin(np.mean(errors**2, axis=1)))
    w = Vt.T @ (s / (s**2 + ridges[best]) * (U.T @ t))
    return w, float(y.mean() - mean @ w), errors[best]


@dataclass(frozen=True, eq=False)
class LocalModel:
    """(1 − w) kernel ridge + w forest, of a site's own labels alone; ``left_out`` residuals at
    these labels.
    """

    basis: FeatureBasis
    coef: Float64[Arr, " r"]
    intercept: float
    forest: Forest | None
    weight: float
    left_out: Float64[Arr, " n"]
    out_of_bag: Float64[
        Arr, " f"
    ]  # the forest's predictions of own labelled rows; empty without a forest
    unit: float  # the deviation of own labels

    def functions(self, Phi: Float64[Arr, "n r"], S: Float64[Arr, "n p"]) -> Float64[Arr, "n h"]:
        """Kernel ridge without its intercept, and the forest."""
        ridge = Phi @ self.coef
        return np.column_stack([ridge] if self.forest is None else [ridge, self.forest.predict(S)])

    def mixed(self, functions: Float64[Arr, "n h"]) -> Float64[Arr, " n"]:
        """Predictions in the labels' units."""
        ridge: Arr = self.intercept + functions[:, 0]
        if self.forest is None:
            return ridge
        return (1.0 - self.weight) * ridge + self.weight * functions[:, 1]

    def predict(self, X: Float64[Arr, "n p"]) -> Float64[Arr, " n"]:
        """Predictions in the labels' units."""
        return self.mixed(self.functions(self.basis(X), self.basis.standardised(X)))


@dataclass(frozen=True, eq=False)
class SiteFeatures:
    """W(x) = (basis, `DIRECTION` · local functions) V, of which the first d columns are φ."""

    basis: FeatureBasis
    directions: tuple[LocalModel, ...]  # one for each target; none: the basis alone
    levels: Float64[Arr, " h"]  # means of the local functions over the common rows
    components: Float64[Arr, "r k"]
    centre: Float64[Arr, " k"]  # the mean of W over the rows that a federation uses; 0 for all rows

    def __call__(self, X: Float64[Arr, "n p"]) -> Float64[Arr, "n k"]:
        """W (n, k) of new rows."""
        return self.with_functions(X)[0]

    def with_functions(
        self, X: Float64[Arr, "n p"]
    ) -> tuple[Float64[Arr, "n k"], Float64[Arr, "n h"]]:
        """W, and the local functions of the directions (no column without them)."""
        Phi = self.basis(X)
        W = Phi @ self.components[: Phi.shape[1]] - self.centre
        if not self.directions:
            return W, np.zeros((len(X), 0))
        S = self.basis.standardised(X)
        functions = [
            local.functions(Phi if local.basis.width == self.basis.width else local.basis(X), S)
            for local in self.directions
        ]
        units = np.repeat(
            [local.unit for local in self.directions],
            [values_of_model.shape[1] for values_of_model in functions],
        )
        values = np.concatenate(functions, axis=1)
        scaled = DIRECTION * (values / units - self.levels)
        return W + scaled @ self.components[Phi.shape[1] :], values


@dataclass(frozen=True)
class FeatureSettings:
    """How a site makes its features."""

    n_common: int  # of its rows, the first ones
    k: int  # features at most
    seed: int  # of the landmarks and the forest
    kernel: KernelName = "gaussian"


def fit_features(
    rows: SiteRows, settings: FeatureSettings
) -> tuple[SiteFeatures, LocalModel | None, Float64[Arr, "n k"]]:
    """A site's features, its local model (None below `LEAST_LABELS` labels, or if all are equal),
    and W of these rows.
    """
    features, [local], W = fit_features_of(rows, rows.y[:, None], settings)
    return features, local, W


def fit_features_of(
    rows: SiteRows, targets: Float64[Arr, "l t"], settings: FeatureSettings
) -> tuple[SiteFeatures, tuple[LocalModel | None, ...], Float64[Arr, "n k"]]:
    """`fit_features` of several targets, which share the features; the rows' own labels are not
    read.
    """
    n_common = settings.n_common
    mean, deviation = mean_and_deviation(rows.X)
    nothing = np.zeros((0, rows.X.shape[1]))
    linear = FeatureBasis(mean, deviation, nothing, 0.0, nothing, np.zeros(rows.X.shape[1]))
    S = linear.standardised(rows.X)
    able = [len(y) >= LEAST_LABELS and np.ptp(y) > 0.0 for y in targets.T]
    bases = _bases(linear, S, settings, learns=any(able))
    local_models = tuple(
        _local_model(bases, rows.own, y, S, settings) if can else None
        for y, can in zip(targets.T, able, strict=True)
    )
    learned = tuple(local for local in local_models if local is not None)
    basis, Phi = bases[0]
    if learned and learned[0].basis is not basis:
        basis, Phi = bases[1]
    directions = learned if settings.kernel == "gaussian" else ()
    values = _values(directions, bases, S, rows.own)
    levels = values[:n_common].mean(0)
    Phi = np.concatenate([Phi, DIRECTION * (values - levels)], axis=1)
    spectrum, V = np.linalg.eigh(Phi[:n_common].T @ Phi[:n_common] / n_common)
    rank = max(int(np.sum(spectrum > 1e-9 * spectrum[-1])), 1)
    components = V[:, ::-1][:, : min(settings.k, rank)]
    centre = np.zeros(components.shape[1])
    features = SiteFeatures(basis, directions, levels, components, centre)
    return features, local_models, Phi @ components


def _bases(
    linear: FeatureBasis, S: Arr, settings: FeatureSettings, *, learns: bool
) -> list[tuple[FeatureBasis, Arr]]:
    """The bases that a local model can choose from, the wider one first, with their features."""
    n_common = settings.n_common
    if settings.kernel == "linear":
        return [_centred(linear, linear.landmarks, 0.0, linear.landmarks, S, n_common)]
    L = _landmarks(S, settings.seed)
    narrow, wide = widths(L, settings.kernel)
    in_use = (wide, narrow) if learns else (wide,)
    return [_centred(linear, L, width, _root(L, width), S, n_common) for width in in_use]


def _values(
    directions: Sequence[LocalModel], bases: Sequence[tuple[FeatureBasis, Arr]], S: Arr, own: Ints
) -> Float64[Arr, "n h"]:
    """The local functions of all directions at these rows; no column without directions."""
    of_basis = {basis.width: Phi for basis, Phi in bases}
    functions = [_at_rows(local, of_basis[local.basis.width], S, own) for local in directions]
    return np.concatenate([np.zeros((len(S), 0)), *functions], axis=1)


def _local_model(
    bases: Sequence[tuple[FeatureBasis, Arr]], own: Ints, y: Arr, S: Arr, settings: FeatureSettings
) -> LocalModel:
    local = _local_ridge(bases, own, y)
    if settings.kernel == "gaussian" and len(y) >= LABELS_FOR_A_FOREST:
        local = _with_forest(local, S[own], y, settings.seed)
    return local


def _at_rows(local: LocalModel, Phi: Arr, S: Arr, own: Ints) -> Float64[Arr, "n h"]:
    """The local functions in units of the labels; the forest predicts an own row without its
    label.
    """
    functions = local.functions(Phi, S)
    if local.forest is not None:
        functions[own, 1] = local.out_of_bag
    return np.asarray(functions / local.unit)


def _landmarks(S: Arr, seed: int) -> Arr:
    """Distinct rows drawn by ``seed``."""
    drawn = np.random.default_rng(seed).choice(len(S), min(LANDMARKS, len(S)), replace=False)
    return np.unique(S[np.sort(drawn)], axis=0)


def _local_ridge(bases: Sequence[tuple[FeatureBasis, Arr]], own: Ints, y: Arr) -> LocalModel:
    """Kernel ridge of own labels on the first basis, or on a narrower one if its left-out error is
    clearly less.
    """
    fits = [ridge_fit(Phi[own], y) for _, Phi in bases]
    best = 0
    if len(fits) > 1 and _error(fits[1]) < NARROW * _error(fits[0]):
        best = 1
    basis, _ = bases[best]
    coef, intercept, left_out = fits[best]
    unit = float(y.std())
    return LocalModel(basis, coef, intercept, None, 0.0, left_out, np.zeros(0), unit)


def _error(fit: tuple[Arr, float, Arr]) -> float:
    return float(np.mean(fit[2] ** 2))


def _root(L: Arr, width: float) -> Arr:
    """K^{-1/2} of the landmarks, in the directions that float64 resolves."""
    values, V = np.linalg.eigh(Gaussian(width)(L, L))
    kept = values > 1e-7 * values[-1]
    root: Arr = V[:, kept] / np.sqrt(values[kept])
    return root


def _centred(
    linear: FeatureBasis, L: Arr, width: float, root: Arr, S: Arr, n_common: int
) -> tuple[FeatureBasis, Arr]:
    """The basis with the common rows' mean as its shift, and the features of the standardised
    rows.
    """
    Phi = Gaussian(width)(S, L) @ root if width else S
    shift = Phi[:n_common].mean(0)
    return replace(linear, landmarks=L, width=width, transform=root, shift=shift), Phi - shift


def _with_forest(local: LocalModel, S: Arr, y: Arr, seed: int) -> LocalModel:
    """The mixture of least left-out error, its weight pulled to the middle."""
    forest, out_of_bag = grown(S, y, seed, trees=TREES)
    gain = local.left_out - (y - out_of_bag)
    n = len(y)
    pull = TO_THE_MIDDLE / n * float(np.mean(local.left_out**2)) + 1e-300
    weight = (float(np.mean(local.left_out * gain)) + 0.5 * pull) / (float(np.mean(gain**2)) + pull)
    weight = float(np.clip(weight, 0.0, 1.0))
    return replace(
        local,
        forest=forest,
        weight=weight,
        left_out=local.left_out - weight * gain,
        out_of_bag=out_of_bag,
    )
