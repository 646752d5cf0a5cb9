"""What `Finished` says of a run's models to one site: a value that every computation makes."""

from dataclasses import dataclass

from coreg_core.agreement.columns import Column
from coreg_core.protocol.messages import Scalars
from coreg_core.protocol.vectors import Vector


@dataclass(frozen=True)
class Told:
    """The fields of `Finished` that are the computation's; ``targets`` None: there are none for this site."""

    columns: tuple[Column, ...]
    targets: Vector | None
    forecast: Scalars = ()
