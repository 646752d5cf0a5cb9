r"""Shared instances that not every site knows: which ones a site knows, and how many sites know each.

    k_i = number of sites that know instance i,   2 ≤ k_i ≤ M

A site answers 0 for instances that it does not know, so a sum has k_i terms at instance i and no message changes. The two
objectives use k_i as docs/research/mathematics.md, "Partial overlap", derives: `share` weighs the rows of the agreement,
`others_share` the rows of the additive smoother.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr, Ints


@dataclass(frozen=True, eq=False)
class Overlap:
    """
    Parameters
    ----------
    places
        position of each of the site's rows among the shared instances (z,), ascending.
    counts
        k (m,), the same at every site.
    n_sites
        M.

    Raises
    ------
    BadData
        places outside the shared instances or not ascending; a count below 2 or above M.
    """

    places: Int64[Ints, " z"]
    counts: Int64[Ints, " m"]
    n_sites: int

    def __post_init__(self) -> None:
        inside = not len(self.places) or (self.places[0] >= 0 and self.places[-1] < len(self.counts))
        if not inside or (np.diff(self.places) <= 0).any():
            raise BadData(f"places of known instances: ascending numbers below {len(self.counts)} are needed.")
        if len(self.counts) and not (self.counts.min() >= 2 and self.counts.max() <= self.n_sites):
            raise BadData(f"each shared instance is known to 2 to {self.n_sites} sites.")

    @property
    def least(self) -> int:
        """The smallest k."""
        return int(self.counts.min(initial=self.n_sites))

    @property
    def share(self) -> Float64[Arr, " z"]:
        """k/M at the known instances."""
        return self.counts[self.places] / self.n_sites

    @property
    def others_share(self) -> Float64[Arr, " z"]:
        """(k − 1)/(M − 1) at the known instances: the share of the other sites that know them."""
        return (self.counts[self.places] - 1) / (self.n_sites - 1)

    def spread(self, rows: Float64[Arr, "z ..."]) -> Float64[Arr, "m ..."]:
        """Rows of the known instances among all, with zeros elsewhere."""
        out = np.zeros((len(self.counts), *rows.shape[1:]))
        out[self.places] = rows
        return out
