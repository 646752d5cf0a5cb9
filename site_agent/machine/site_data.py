"""A site's private arrays, which never leave it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float64, Int64

from coreg_core.alignment.overlap import Overlap
from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr, Ints
from coreg_core.protocol.plan import Additive, Agreement, Plan


@dataclass(frozen=True)
class PrivateData:
    """The preprocessed labelled rows, the label column in its own units, the unlabelled rows.

    ``positions``: the index of each labelled row among the shared instances, for common rows.
    ``row_keys``: a name for each label, by which the ledger recognises it (`row_keys`); empty without a ledger.
    ``ids``: of the unlabelled rows, in their order. ``instances``: their names in this site's ledger, which are independent of
    the digest that leaves the site. ``overlap``: which shared instances the unlabelled rows are, if the site does not know all;
    ``aligned_sites``: the sites that it counts. ``positive``: the value of a yes/no target that ``y`` has as 1; "" for numbers.
    ``weights``: how much each labelled row counts; None: all alike.
    """

    X: Float64[Arr, "n d"]
    y: Float64[Arr, " n"]
    Z: Float64[Arr, "m d"]
    ids_digest: str
    salt: bytes = b""  # a secret of the site, so that its data digest confirms no guess
    positions: Int64[Ints, " n"] | None = None
    row_keys: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    overlap: Overlap | None = None
    aligned_sites: tuple[str, ...] = ()
    positive: str = ""
    weights: Float64[Arr, " n"] | None = None

    @property
    def n_shared(self) -> int:
        """m."""
        return len(self.Z) if self.overlap is None else len(self.overlap.counts)

    @property
    def arrays(self) -> tuple[Arr, ...]:
        """All numbers that an answer depends on, for digests."""
        return (self.X, self.y, self.Z, *(() if self.weights is None else (self.weights,)))

    def plan_fault(self, plan: Plan) -> str | None:
        """The reason if the objective takes no weights, a sum is not over the sites that the alignment counted, or the schedule
        needs all instances."""
        terms = plan.objective
        if self.weights is not None and isinstance(terms, Additive) and terms.residuals != "smoothed":
            return f'this site\'s rows have weights, which need residuals = "smoothed", not "{terms.residuals}".'
        if self.weights is not None and isinstance(terms, Agreement):
            return "this site's rows have weights, which only the additive objective takes. Remove `weight`, or change the plan."
        if self.overlap is None:
            return None
        if plan.sites != self.aligned_sites or plan.membership.min_sites < len(plan.sites):
            return (
                "the shared ids are known to some sites only, as counted by an alignment of "
                f"{', '.join(self.aligned_sites)}. A run needs exactly these sites, and all of them (min_sites = "
                f"{len(self.aligned_sites)}). Align again, or change the plan."
            )
        if isinstance(terms, Agreement) and plan.iteration.name == "block-coordinate-descent":
            return "schedule 'block-coordinate-descent' needs sites that know all shared instances."
        return None

    def require(self, plan: Plan) -> None:
        """
        Raises
        ------
        BadData
            `plan_fault`.
        """
        if (fault := self.plan_fault(plan)) is not None:
            raise BadData(fault)


def row_keys(ids: Sequence[str], y: Float64[Arr, " n"], salt: bytes) -> tuple[str, ...]:
    """A name for each label: the digest of its row's id and its value under the site's secret.

    A corrected label has another name. The salt prevents a reader of the ledger from testing guesses of ids and values.
    """
    return tuple(
        hashlib.sha256(salt + f"label {len(text)} {text} {value!r}".encode()).hexdigest()[:24]
        for text, value in zip(ids, y.tolist(), strict=True)
    )
