"""Sums over labels from complete features, which no site has: what the method is compared with."""

import numpy as np

from coreg_core.additive.moments import Sums


def sums(Phi, owner, y, weight, levels):
    """`Sums` of features Phi (N, D) and labels with weights."""
    own = (np.arange(len(levels))[:, None] == owner) * weight
    t = y - levels[owner]
    weighted = weight[:, None] * Phi
    return Sums(
        P=Phi.T @ weighted,
        o=own @ Phi,
        b=weighted.T @ t,
        r=own @ t,
        s=float(weight @ t**2),
        n=own.sum(1),
        count=float(weight.sum()),
    )
