"""Results of past forecasts in the benefit study, by the value of the forecast.

The figures are those of `coreg_core.evaluation.calibration`, from the benefit study on real tables (docs/research/benefit.md),
not from the current federation.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Band:
    """Results of the study's sites with a forecast between ``low`` (None: no limit) and ``high``.

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
        """The band of a forecast; None if no site had a similar one."""
        return next((band for band in self.bands if band.holds(forecast)), None)
