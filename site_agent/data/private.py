"""What never leaves a site: the arrays that it computes with. Knows arrays alone."""

from dataclasses import dataclass

from jaxtyping import Float64

from coreg_core.arrays import Arr


@dataclass(frozen=True)
class PrivateData:
    """The preprocessed labelled rows, the label column in its own units, the unlabelled rows."""

    X: Float64[Arr, "n d"]
    y: Float64[Arr, " n"]
    Z: Float64[Arr, "m d"]
    ids_digest: str
    salt: bytes = b""  # a secret of the site, so that its data digest cannot be guessed at
