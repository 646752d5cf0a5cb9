"""The state of a training: its phase, and the arrays for the next question."""

from dataclasses import dataclass
from enum import IntEnum

from jaxtyping import Float64

from coreg_core.additive.solver.block_gmres import GmresState
from coreg_core.numerics.arrays import Arr


class Phase(IntEnum):
    """Phases of a training."""

    LABELS = 0
    SPREAD = 1
    SCORE = 2
    SMOOTHER = 3
    SOLVE = 4
    TRACES = 5
    GRID = 6
    JOINT = 7
    FINAL = 8
    SMOOTHED = 9
    GRADIENT = 10
    MODEL = 11
    DONE = 12


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Numbers and arrays; the solver's own states are nested under ``solves``."""

    phase: int
    step: int  # tuning steps made
    rounds: int  # exchanges in which vectors were summed
    exchanges: int  # all of them
    stop: int  # how the final solve ended: its state's code
    units: Float64[Arr, " 2"]  # mean, deviation
    count: Float64[Arr, ""]  # labels of the federation
    score: Float64[Arr, "m 1"]
    weight: Float64[Arr, " 1"]
    probe_sum: Float64[Arr, "m p"]
    scale: Float64[Arr, " k"]
    multiplier: Float64[Arr, ""]  # g
    operator: Float64[Arr, " 2"]  # noise and prior multipliers of the final solve
    x: Float64[Arr, "r k"]
    affine: Float64[Arr, " r"]  # T(x₀) of the final solve's first column, and ...
    rho: Float64[Arr, " r"]  # ... its true residual ρ = T(x) − x, known without another question
    smoothed: Float64[Arr, " l"]
    sizes: Float64[Arr, " 2"]
    asked: Float64[Arr, ""]  # the largest norm that the final solve's first column was asked at
    joint: Float64[Arr, " j"]  # the grid's errors, one an operator
    certificate: Float64[Arr, " 3"]
    U: Float64[Arr, "r n"]  # the space that the last solve leaves to the next
    C: Float64[Arr, "r n"]
    solves: tuple[GmresState, ...]
