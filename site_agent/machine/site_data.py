"""What never leaves a site: the arrays that it computes with."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float64, Int64

from coreg_core.numerics.arrays import Arr, Ints


@dataclass(frozen=True)
class PrivateData:
    """The preprocessed labelled rows, the label column in its own units, the unlabelled rows.

    ``positions``: where each labelled row stands among the shared instances, where all of them do (common rows).
    ``row_keys``: a name for each label, by which the site knows it again (`row_keys`); empty where nobody is to remember any.
    ``ids``: of the unlabelled rows, in their order. ``instances``: names of them all in this site's ledger, whatever digest of
    them goes out.
    """

    X: Float64[Arr, "n d"]
    y: Float64[Arr, " n"]
    Z: Float64[Arr, "m d"]
    ids_digest: str
    salt: bytes = b""  # a secret of the site, so that its data digest cannot be guessed at
    positions: Int64[Ints, " n"] | None = None
    row_keys: tuple[str, ...] = ()
    instances: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


def row_keys(ids: Sequence[str], y: Float64[Arr, " n"], salt: bytes) -> tuple[str, ...]:
    """A name for each label, of its row's id and its value under the site's secret: a corrected label has another.

    For the site's own disk; salted, so that whoever reads the ledger cannot try ids and values out.
    """
    return tuple(
        hashlib.sha256(salt + f"label {len(text)} {text} {value!r}".encode()).hexdigest()[:24]
        for text, value in zip(ids, y.tolist(), strict=True)
    )
