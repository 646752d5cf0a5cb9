r"""The result of a training at a site: its own model, which needs only its own columns, and its part of the joint score.

    f_v(x) = a + a_v + h_v(x) + smooth_v(s − h_v(Z))(x)        blended with the model alone where the site has labels
    (design, 7.4)

Both are kernel expansions in the site's standard units plus a constant, so a model file needs arrays and JSON alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.model.blend import Blend
from coreg_core.additive.model.features import CentredFeatures, Standardiser
from coreg_core.agreement.views import KernelExpansion
from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr, as_matrix


@dataclass(frozen=True, eq=False)
class Expansion:
    """constant + Σ_j k_j(x, B_j) c_j, of rows in their own units."""

    standardiser: Standardiser
    constant: float
    functions: tuple[KernelExpansion, ...]

    def predict(self, X: Any) -> Float64[Arr, " n"]:
        """f(X) of an array (n, d), in blocks.

        Raises
        ------
        BadData
            a data frame, whose names cannot be checked here, or another number of columns.
        """
        if hasattr(X, "columns"):
            raise BadData(
                "a data frame: this model does not know the columns' names. Give an array with the view's columns in the view's "
                "order, for example frame[columns].to_numpy(). predict_view gives the joined model."
            )
        X, d = as_matrix(X, "X"), len(self.standardiser.mean)
        if X.shape[1] != d:
            raise BadData(f"X: {X.shape[1]} columns; the model has {d}, those of its view in the view's order.")
        rows = self.standardiser(X)
        out = np.full(len(X), self.constant)
        for function in self.functions:
            out += function.predict(rows)
        return out

    def scaled(self, factor: float, shift: float = 0.0) -> "Expansion":
        """shift + factor · f."""
        functions = tuple(KernelExpansion(f.kernel, f.points, factor * f.coef) for f in self.functions)
        return Expansion(self.standardiser, shift + factor * self.constant, functions)

    def plus(self, other: "Expansion") -> "Expansion":
        """f + g; expansions over the same basis points are added into one."""
        functions = list(self.functions)
        for g in other.functions:
            for j, f in enumerate(functions):
                if f.points is g.points and f.kernel == g.kernel:
                    functions[j] = KernelExpansion(f.kernel, f.points, f.coef + g.coef)
                    break
            else:
                functions.append(g)
        return Expansion(self.standardiser, self.constant + other.constant, tuple(functions))


def expansion(
    standardiser: Standardiser, features: CentredFeatures, w: Float64[Arr, " r"], constant: float = 0.0
) -> Expansion:
    """constant + (φ(x) − shift)·w."""
    basis = features.basis
    function = KernelExpansion(basis.kernel, basis.points, basis.transform @ w)
    return Expansion(standardiser, constant - float(features.shift @ w), (function,))


@dataclass(frozen=True, eq=False)
class SiteModel:
    """A site's models, all in the units of its labels.

    ``own`` predicts alone. It is the blend of ``joined`` and ``alone`` (``alone`` is None without labels).
    ``part`` is h_v: a + a_v + Σ_v h_v(x_v) over the sites is the joint score, with ``intercept`` a + a_v. ``left_out``:
    predictions of own and alone at the labelled rows, each left out in turn while the others' parts stay.
    """

    own: Expansion
    joined: Expansion
    alone: Expansion | None
    part: Expansion
    intercept: float
    blend: Blend
    left_out: Float64[Arr, "2 n"]


def site_model(
    joined: Expansion,
    part: Expansion,
    a: float,
    alone: Expansion | None,
    blend: Blend,
    left_out: Float64[Arr, "2 n"],
    units: tuple[float, float],
) -> SiteModel:
    """Blended, and taken from the federation's units into those of the labels."""
    mean, deviation = units
    weight = blend.weight
    own = joined if alone is None else joined.scaled(weight).plus(alone.scaled(1.0 - weight))
    return SiteModel(
        own.scaled(deviation, mean),
        joined.scaled(deviation, mean),
        None if alone is None else alone.scaled(deviation, mean),
        part.scaled(deviation),
        mean + deviation * a,
        blend,
        mean + deviation * left_out,
    )
