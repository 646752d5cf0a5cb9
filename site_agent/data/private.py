"""What never leaves a site: the arrays that it computes with. Knows arrays alone."""

from dataclasses import dataclass

from jaxtyping import Float64, Int64

from coreg_core.arrays import Arr, Ints


@dataclass(frozen=True)
class PrivateData:
    """The preprocessed labelled rows, the label column in its own units, the unlabelled rows.

    ``positions``: where each labelled row stands among the shared instances, where all of them do (common rows).
    """

    X: Float64[Arr, "n d"]
    y: Float64[Arr, " n"]
    Z: Float64[Arr, "m d"]
    ids_digest: str
    salt: bytes = b""  # a secret of the site, so that its data digest cannot be guessed at
    positions: Int64[Ints, " n"] | None = None
