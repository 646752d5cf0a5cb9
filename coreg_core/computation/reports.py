"""Progress of a computation for the coordinator, which cannot see it: residual and gap to the nearest power of ten."""

from math import isfinite, log10

from coreg_core.agreement.schedules.schedule import Progress
from coreg_core.protocol.messages import Report
from coreg_core.protocol.outcomes import Outcome


def power_of_ten(value: float) -> float:
    """The nearest power of ten; 0 stays 0, and -1 stands for a value that is not finite."""
    if not isfinite(value) or value < 0.0:
        return -1.0
    return float(f"1e{round(log10(value))}") if value else 0.0


def report_of(rounds: int, phase: str, progress: Progress | None, over: tuple[Outcome, str] | None) -> Report:
    """The report beside an answer; ``phase`` is that of the open question, ``over`` the outcome at the end."""
    return Report(
        round=rounds,
        phase=phase,
        verified=progress is not None and progress.verified,
        residual=() if progress is None else tuple(map(power_of_ten, progress.residual.tolist())),
        gap=() if progress is None else tuple(map(power_of_ten, progress.gap.tolist())),
        outcome="" if over is None else over[0].name,
        reason="" if over is None else over[1],
    )
