r"""Labels under ε-local differential privacy: what leaves a site of a label, by `label_epsilon`.

For any two labels a and b, and any output t: P(t | a) ≤ e^ε P(t | b). Each label is randomised
once. Level, deviation, features and sums are computed from randomised labels, so they keep the
guarantee.

A **yes/no label** is flipped with probability p = 1/(1 + e^ε) (Warner 1965). The sums take
(flipped − p)/(1 − 2p), whose mean is the true label.

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

from math import ceil, exp

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.objectives.additive import Additive

STEPS = 4096  # of the grid over a range
TAIL = 16.0
MARGIN = 2.0**-20


def _flipped(rules: Additive) -> float:
    """p, rounded up."""
    return 1.0 / (1.0 + exp(rules.label_epsilon * (1.0 - MARGIN)))


def randomised(y: Float64[Arr, " n"], rules: Additive, uniforms: Float64[Arr, "n 2"]) -> Arr:
    """The randomised labels (n,): 0 or 1, or places on the grid in the labels' unit."""
    if rules.task == "classification":
        return np.abs(y - (uniforms[:, 0] < _flipped(rules)))
    low, high = rules.label_range
    step = rules.span / STEPS
    decay = rules.label_epsilon * (1.0 - MARGIN) / STEPS
    places = np.rint((np.clip(y, low, high) - low) / step)
    # P(|z| ≥ k) = 2 α^k/(1 + α) for k ≥ 1.
    size = np.floor(-np.log(uniforms[:, 0] * (1.0 + exp(-decay)) / 2.0) / decay)
    noise = np.where(uniforms[:, 1] < 0.5, -size, size)
    reach = ceil(TAIL / decay)
    return np.asarray(low + step * np.clip(places + noise, -reach, STEPS + reach))


def unbiased(labels: Arr, rules: Additive) -> Arr:
    """Of randomised labels: numbers whose mean is the true label, or the clipped one."""
    if rules.task != "classification":
        return labels
    p = _flipped(rules)
    return (labels - p) / (1.0 - 2.0 * p)


def noise_variance(rules: Additive) -> float:
    """The variance of an unbiased randomised label about its label."""
    if rules.task == "classification":
        p = _flipped(rules)
        return p * (1.0 - p) / (1.0 - 2.0 * p) ** 2
    return 2.0 * (rules.span / rules.label_epsilon) ** 2
