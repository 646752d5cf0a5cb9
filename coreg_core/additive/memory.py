r"""What a site has to remember between questions: a few numbers, by which another process is where it was, on the same bits.

Everything else of a site (features, factors, its model alone) follows from its data and the terms. These follow from questions;
whoever serves a site writes them down with each answer, so that nobody has to repeat questions, or disclose anything twice, for
a site that comes back. None of it is sent. Knows one site; no message and no file.
"""

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from coreg_core.additive.exchange import Ask
from coreg_core.additive.questions import Position
from coreg_core.additive.site import AdditiveSite
from coreg_core.additive.tuning import Traces
from coreg_core.additive.view import Hyper

_BEFORE_SCORE = (Ask.LABELS, Ask.SPREAD)


@dataclass(frozen=True)
class SiteMemory:
    """Where the training stands; units of labels; the smoother (candidate, η, r²); σ² and τ², and what was found, a step."""

    position: Position
    units: tuple[float, float]
    smoother: tuple[int, float, float] | None
    hypers: tuple[Hyper, ...]
    found: tuple[Traces, ...]

    @classmethod
    def of(cls, site: AdditiveSite, position: Position) -> "SiteMemory":
        """Of a site that has just answered the question which led there."""
        chosen = None if position.ask in (*_BEFORE_SCORE, Ask.SCORE) else site.smoother
        smoother = None if chosen is None else (chosen.candidate, chosen.eta, chosen.r2)
        return cls(position, site.units, smoother, tuple(site.hypers), tuple(site.found))

    def restore(self, site: AdditiveSite) -> None:
        """Bring a fresh site of the same data and terms to where this was."""
        if self.position.ask not in _BEFORE_SCORE:
            site.take_up(self.units, self.smoother, list(self.hypers), list(self.found))

    def to_json(self) -> dict[str, Any]:
        """Plain values; JSON keeps every bit of a float."""
        return {
            "position": [self.position.ask.name, *astuple(self.position)[1:]],
            "units": self.units,
            "smoother": self.smoother,
            "hypers": [astuple(hyper) for hyper in self.hypers],
            "found": [astuple(traces) for traces in self.found],
        }

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> "SiteMemory":
        """The inverse of `to_json`."""
        ask, *rest = plain["position"]
        (mean, deviation), smoother = plain["units"], plain["smoother"]
        return cls(
            Position(Ask[ask], *rest),
            (mean, deviation),
            None if smoother is None else (smoother[0], smoother[1], smoother[2]),
            tuple(Hyper(*pair) for pair in plain["hypers"]),
            tuple(Traces(*four) for four in plain["found"]),
        )
