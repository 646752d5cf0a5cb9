r"""Labels under ε-local differential privacy: what leaves a site of a label, by `label_epsilon`.

For any two labels a and b, and any output t: P(t | a) ≤ e^ε P(t | b). Each label is randomised
once. Level, deviation, features and sums are computed from randomised labels, so they keep the
guarantee.

A **yes/no label** is flipped with probability p = 1/(1 + e^ε) (Warner 1965). The sums take
(flipped − p)/(1 − 2p), whose mean is the true label. One of K **classes** stays with probability
e^ε/(e^ε + K − 1), and becomes each other one with probability q = 1/(e^ε + K − 1) (Kairouz et al.
2014). The sums take ([class is k] − q)/(1 − K q) for each k.

A **number** is clipped to the plan's range and rounded to one of `STEPS` + 1 places on a grid. Two
labels are then at most `STEPS` places apart. A random whole number z of places is added, with
P(z) ∝ α^|z| and α = e^(−ε/`STEPS`). This is the geometric mechanism of Ghosh et al. (2012): Laplace
noise of scale range/ε, on a grid. Labels and noise are whole numbers, so no low bit of a float64
tells the label (Mironov 2012). The rounding happens before the noise, so it costs nothing.

Computed probabilities are not exact. A uniform number has a relative error of 2⁻⁵³, the tail at its
logarithm of less than 2⁻⁴⁴, and a single place is the share ε/`STEPS` of a tail. So the logarithm
of a ratio is off by less than 2⁻²⁶ for ε ≥ 0.1. ε is lowered by the share `MARGIN`, which is more.
Places further than `TAIL` scales outside the range count as the last one: beyond it the random bits
would end.

The uniform numbers come from outside. A label has to have the same ones whenever it is released
under the same terms, and independent ones otherwise: outputs that share them would tell the label.
"""

from collections.abc import Sequence
from math import ceil, exp

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.objectives.additive import Additive

STEPS = 4096  # of the grid over a range
TAIL = 16.0
MARGIN = 2.0**-20


def columns_of(y: Float64[Arr, " n"], classes: Sequence[str]) -> Float64[Arr, "n t"]:
    """The targets of labels: the numbers, or for each class whether the label is its place."""
    if not len(classes):
        return y[:, None]
    return np.asarray(y[:, None] == np.arange(len(classes)), dtype=np.float64)


def _other(rules: Additive) -> float:
    """q, the probability of each other class, rounded up; p of a yes/no label."""
    others = max(rules.targets, 2) - 1
    return 1.0 / (others + exp(rules.label_epsilon * (1.0 - MARGIN)))


def randomised(y: Float64[Arr, " n"], rules: Additive, uniforms: Float64[Arr, "n 2"]) -> Arr:
    """The randomised labels (n,): 0 or 1, the place of a class, or places on the grid in the
    labels' unit.
    """
    if rules.task == "classification":
        others = max(rules.targets, 2) - 1
        changes = uniforms[:, 0] < others * _other(rules)
        by = 1.0 + np.minimum(np.floor(uniforms[:, 1] * others), others - 1.0)
        return np.asarray(np.where(changes, (y + by) % (others + 1), y))
    low, high = rules.label_range
    step = rules.span / STEPS
    decay = rules.label_epsilon * (1.0 - MARGIN) / STEPS
    places = np.rint((np.clip(y, low, high) - low) / step)
    # P(|z| ≥ k) = 2 α^k/(1 + α) for k ≥ 1.
    size = np.floor(-np.log(uniforms[:, 0] * (1.0 + exp(-decay)) / 2.0) / decay)
    noise = np.where(uniforms[:, 1] < 0.5, -size, size)
    reach = ceil(TAIL / decay)
    return np.asarray(low + step * np.clip(places + noise, -reach, STEPS + reach))


def unbiased(labels: Float64[Arr, " n"], rules: Additive) -> Float64[Arr, "n t"]:
    """Of randomised labels: columns of numbers whose mean is that of `columns_of` the true label,
    or of the clipped one.
    """
    columns = columns_of(labels, rules.classes)
    if rules.task != "classification":
        return columns
    q = _other(rules)
    return (columns - q) / (1.0 - max(rules.targets, 2) * q)


def noise_variance(rules: Additive) -> float:
    """The variance of an unbiased randomised label about its label, a mean over classes."""
    if rules.task == "classification":
        K = max(rules.targets, 2)
        q = _other(rules)
        p = 1.0 - (K - 1) * q  # of the true class
        return (p * (1.0 - p) + (K - 1) * q * (1.0 - q)) / K / (p - q) ** 2
    return 2.0 * (rules.span / rules.label_epsilon) ** 2
