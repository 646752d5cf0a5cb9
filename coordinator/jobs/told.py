"""What `Finished` says of a run's models to one site: a value that every computation makes. Knows messages alone."""

from dataclasses import dataclass

from coreg_core.messages import Scalars, Vector
from coreg_core.rounds.columns import Column


@dataclass(frozen=True)
class Told:
    """The fields of `Finished` that are the computation's; ``targets`` None: there are none for this site."""

    columns: tuple[Column, ...]
    targets: Vector | None
    forecast: Scalars = ()
