"""A site's private arrays, which never leave it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float64, Int64

from coreg_core.errors import BadData
from coreg_core.numerics.arrays import Arr, Ints
from coreg_core.protocol.plan import Plan


@dataclass(frozen=True)
class PrivateData:
    """The preprocessed labelled rows, the label column in its own units, the unlabelled rows.

    ``positions``: the index of each labelled row among the shared instances, -1 if it is none; None: none is.
    ``row_keys``: a name for each label, by which the ledger recognises it (`row_keys`); empty without a ledger.
    ``ids``: of the unlabelled rows, in their order. ``instances``: their name in this site's ledger, which is independent of
    the digest that leaves the site. ``positive``: the value of a yes/no target that ``y`` has as 1; "" for numbers.
    ``weights``: how much each labelled row counts; None: all alike.
    """

    X: Float64[Arr, "n d"]
    y: Float64[Arr, " n"]
    Z: Float64[Arr, "m d"]
    ids_digest: str
    salt: bytes = b""  # a secret of the site, so that its data digest confirms no guess
    positions: Int64[Ints, " n"] | None = None
    row_keys: tuple[str, ...] = ()
    instances: str = ""
    ids: tuple[str, ...] = ()
    positive: str = ""
    weights: Float64[Arr, " n"] | None = None

    @property
    def n_shared(self) -> int:
        """m."""
        return len(self.Z)

    @property
    def arrays(self) -> tuple[Arr, ...]:
        """All numbers that an answer depends on, for digests."""
        return (self.X, self.y, self.Z, *(() if self.weights is None else (self.weights,)))

    def plan_fault(self, plan: Plan) -> str | None:  # noqa: ARG002
        """The reason if these rows have weights, which no objective takes."""
        return None if self.weights is None else "this site's rows have weights, which no objective takes."

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
