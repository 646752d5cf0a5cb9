"""Progress of a computation for the coordinator, which cannot see it: coarse, unless plan and policy allow exact figures."""

from math import frexp, inf, isfinite
from typing import Any

from coreg_core.computation.computation import Computation
from coreg_core.computation.rounds import Round
from coreg_core.protocol.messages import Report

MOST = 10_000


def level_of(ratio: float) -> int:
    """⌈log₂(ratio)⌉, at most `MOST` in size: the number of halvings from a gap to its tolerance."""
    if not ratio > 0.0:
        return -MOST
    if ratio == inf:
        return MOST
    mantissa, exponent = frexp(ratio)
    return max(-MOST, min(MOST, exponent - (mantissa == 0.5)))


def report_of(computation: Computation, state: Any, asked: Round | None, *, exact: bool) -> Report:
    """The report beside an answer; ``asked`` is the open question, None at the end.

    Exact residuals of every round disclose half of what the sum's spectrum needs, so they are sent only if all sites agree.
    """
    over, progress = computation.outcome(state), computation.progress(state)
    told = progress is not None and progress.verified
    levels = tuple(level_of(ratio) for ratio in computation.distance(state)) if told else ()
    numbers = dict.fromkeys(("residual", "gap", "bound"), tuple[float, ...]())
    if exact and progress is not None:
        shown = {"residual": progress.residual, "gap": progress.gap, "bound": progress.prediction_bound}
        numbers = {name: tuple(x if isfinite(x) else -1.0 for x in values.tolist()) for name, values in shown.items()}
    return Report(
        round=computation.rounds(state),
        phase="" if asked is None else asked.phase,
        verified=told,
        level=levels,
        outcome="" if over is None else over[0].name,
        reason="" if over is None else over[1],
        **numbers,
    )
