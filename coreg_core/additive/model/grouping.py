"""Grouped and open residuals disclose labels, so each needs the site's own policy. No label goes out in two groups.

Means over two groups that differ by one label disclose that label by their difference: after a new row in the table, with
another group size, or with other shared instances. So the agent records every group that went out (`require_same_groups`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from jaxtyping import Float64

from coreg_core.errors import Refused, UsageError
from coreg_core.numerics.arrays import Arr

Group: TypeAlias = tuple[str, ...]  # the keys of its rows, sorted


@dataclass(frozen=True)
class ResidualPolicy:
    """The residuals that a site allows beyond smoothed ones; none by default.

    ``grouped_at_least``: groups of at least so many labels can go out as their mean; None: no groups. Never below 3.
    ``open_residuals``: labels can go out.
    """

    grouped_at_least: int | None = None
    open_residuals: bool = False

    def __post_init__(self) -> None:
        if self.grouped_at_least is not None and self.grouped_at_least < 3:
            raise UsageError(
                f"grouped_at_least={self.grouped_at_least}: a mean over fewer than 3 labels hides none of them; give 3 or more."
            )

    def require(self, residuals: str, group_size: int, site: str) -> None:
        """Refuse residuals that the policy does not allow.

        Raises
        ------
        Refused
            grouped or open residuals that this policy does not name, or groups smaller than its minimum.
        """
        if residuals == "open" and not self.open_residuals:
            raise Refused(
                f'{site}: residuals="open" tells every label of this site, and its policy does not say open_residuals = true.'
            )
        if residuals == "grouped":
            if self.grouped_at_least is None:
                raise Refused(
                    f'{site}: residuals="grouped" tells means over groups of labels; its policy does not say grouped_at_least.'
                )
            if group_size < self.grouped_at_least:
                raise Refused(
                    f"{site}: groups of {group_size} labels, and its policy says grouped_at_least = {self.grouped_at_least}."
                )


def near_groups(rows: Float64[Arr, "n d"], size: int) -> Float64[Arr, "g n"]:
    """C (g, n): means over groups of at least ``size`` rows that lie near each other along the first principal direction.

    A function of the rows (a site's standardised columns) and the size alone, never of labels.

    Raises
    ------
    Refused
        fewer rows than one group needs.
    """
    n = len(rows)
    if n == 0:
        return np.zeros((0, 0))
    if n < size:
        raise Refused(
            f"{n} labelled rows make no group of {size}; take part with smoothed residuals, or without labels."
        )
    centred = rows - rows.mean(axis=0)
    direction = np.linalg.svd(centred, full_matrices=False)[2][0]
    direction = direction * np.sign(
        direction[np.abs(direction).argmax()]
    )  # LAPACK's sign is an accident; groups are not
    order = np.argsort(centred @ direction, kind="stable")
    out = np.zeros((n // size, n))
    for group, members in enumerate(np.array_split(order, n // size)):
        out[group, members] = 1.0 / len(members)
    return out


def members_of(groups: Float64[Arr, "g n"], keys: Sequence[str]) -> tuple[Group, ...]:
    """Each group as the sorted keys of its rows, in the order of the groups; ``keys`` name the n labels."""
    return tuple(tuple(sorted(keys[i] for i in np.flatnonzero(group).tolist())) for group in groups)


def require_same_groups(groups: Collection[Group], before: Collection[Group], site: str) -> None:
    """No label in two different groups: means over groups that differ by one label disclose it by their difference.

    Parameters
    ----------
    groups
        that are to go out, each as its members' keys.
    before
        that went out, in any run.
    site
        for the error.

    Raises
    ------
    Refused
        some label went out in another group before.
    """
    first = {key: group for group in before for key in group}
    moved = sum(first.get(key, group) != group for group in groups for key in group)
    if moved:
        raise Refused(
            f"{site}: {moved} labels went out in other groups before, and the difference of two groupings can be a single label. "
            "Take part with the table and the group size of the first time, or with smoothed residuals."
        )
