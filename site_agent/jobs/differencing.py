r"""What sums over different sets of sites tell together: answers are linear, and linear algebra does not forget.

A sum over one site fewer, or one more, at any target, in this run or another, is that site's answer: exactly where the
weights are equal, nearly where they are near. So is every combination: S(a,b,c) + S(c,d,e) − S(a,b,d,e) = 2 S(c). A site
remembers the sets that it was summed with on a set of instances, and refuses one that, with the earlier ones, tells some
site's answer by itself: the unit vector of that site lies in the span of the sets' indicator vectors. Weights are not looked
at: a near one tells nearly as much. Knows names; no plan, message or file.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

_ZERO = 1e-9


@dataclass(frozen=True)
class SummedWith:
    """A set of sites under whose sum an answer went out; ``may_change``: the plan said so, so every one of them had agreed."""

    sites: frozenset[str]
    may_change: bool


def told_apart(sets: Iterable[frozenset[str]]) -> str | None:
    """A site whose own answer follows from sums over these sets; None where none does."""
    distinct = sorted(set(sets), key=sorted)
    names = sorted(frozenset[str]().union(*distinct))
    if not distinct:
        return None
    indicator = np.array([[float(name in s) for name in names] for s in distinct])
    # Orthonormal rows of the span: a unit vector lies in it where its projection has length 1.
    _, size, rows = np.linalg.svd(indicator, full_matrices=False)
    span = rows[size > _ZERO * size[0]]
    inside = np.einsum("rj,rj->j", span, span) > 1.0 - _ZERO
    return next((name for name, told in zip(names, inside, strict=True) if told), None)


def objection(now: frozenset[str], earlier: Iterable[SummedWith], *, consents: bool) -> str | None:
    """Why this site does not answer under a sum over ``now``; ``consents`` is its policy's word (membership_changes)."""
    before = [e for e in earlier if e.sites != now]
    if consents:
        before = [e for e in before if not e.may_change]
    told = told_apart([now, *(e.sites for e in before)])
    if told is None:
        return None
    changed = min((e.sites for e in before), key=lambda s: (len(s ^ now), sorted(s)))
    gone, come = ", ".join(sorted(changed - now)) or "nobody", ", ".join(sorted(now - changed)) or "nobody"
    return (
        f"this site was summed with {', '.join(sorted(changed))} on these instances, and now with {', '.join(sorted(now))} "
        f"({gone} gone, {come} come): the difference of such sums is the answer of {told} alone, in whatever run they are "
        f"taken. Go on "
        "with the same sites; or start from the first answer under a plan with [privacy] membership_changes = true, which every "
        "site's policy has to allow in the same words."
    )
