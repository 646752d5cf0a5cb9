"""What forecasts were worth so far: how often they were right, by their value and by the labels behind them.

The figures are those of `coreg_core.evaluation.calibration`, from the benefit study on real tables (docs/research/benefit.md)
and not from the federation that is told them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Band:
    """Sites of the study whose forecast fell between ``low`` (None: no end) and ``high``: what came, and how many were harmed.

    ``median_change`` is relative, of the root mean squared error; ``harmed`` the share that was worse by more than 2 %.
    """

    low: float | None
    high: float | None
    sites: int
    median_change: float
    harmed: float

    def holds(self, forecast: float) -> bool:
        """low ≤ forecast < high."""
        return (self.low is None or forecast >= self.low) and (self.high is None or forecast < self.high)


@dataclass(frozen=True)
class Experience:
    """One kind of forecast.

    Parameters
    ----------
    bands
        in order.
    """

    bands: tuple[Band, ...]

    def like(self, forecast: float) -> Band | None:
        """The sites that were told the like; None where no site was."""
        return next((band for band in self.bands if band.holds(forecast)), None)
