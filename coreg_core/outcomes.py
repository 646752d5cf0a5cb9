r"""The outcome of a run, its exit code, and advice for the operator.

The end of one column of a solver is a `coreg_core.agreement.solvers.Stop`.

One event of either machine, for terminals, logs, pages and metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["info", "warning"]


@dataclass(frozen=True)
class Notice:
    """One event. A function beside each machine makes every kind of notice."""

    name: str  # of the kind; the event of a log line
    text: str = ""  # a sentence for the operator
    level: Level = "info"  # "warning" if the operator should act
    run: str = ""
    site: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)  # plain values, for programs
    private: bool = False  # it mentions a site's rows or models, so it is never logged
    work: str = ""  # an agent's work from now on, for a progress line

    def to_dict(self) -> dict[str, Any]:
        """The notice as one JSON object."""
        given = {"run": self.run, "site": self.site, "text": self.text}
        return {
            "event": self.name,
            "level": self.level,
            **{name: value for name, value in given.items() if value},
            **self.fields,
        }


class Outcome(Enum):
    """The end of a run; the text states the event, and `advice` the next action."""

    CONVERGED = "The models are as precise as the plan asked."
    MAX_ROUNDS = "The plan's max_rounds were reached before the tolerances."
    STAGNATED = (
        "The verified residual no longer falls: no further progress is possible at this precision."
    )
    NOTHING_SHARED = "No id is known to every site."
    REHEARSED = "Every site would take part. It was a rehearsal: no answer about rows was given."
    REFUSED = "A site refused the plan."
    TOO_FEW_SITES = "Too few sites joined in time."
    STALLED = "Required sites did not reconnect in time."
    SITE_FAULT = "A site sent an answer that cannot be used."
    INTERRUPTED = "Interrupted by the operator."
    CANCELLED = "Cancelled by the operator."

    @property
    def good(self) -> bool:
        """Whether the models are as precise as the plan asked."""
        return self is Outcome.CONVERGED


# The exit code of a run for the commands of both ends (docs/reference/exit-codes.md), and the next
# action.
_ENDS = {
    Outcome.CONVERGED: (0, ""),
    Outcome.MAX_ROUNDS: (3, "Raise max_rounds, or loosen the tolerances."),
    Outcome.STAGNATED: (3, "Loosen the tolerances, lower the coupling, or raise the ridge."),
    Outcome.NOTHING_SHARED: (
        3,
        (
            "Compare how sites write their ids (`coreg-agent check` prints some). For leading"
            ' zeros: [alignment] ids = "numbers".'
        ),
    ),
    Outcome.REHEARSED: (0, "Submit the study without --rehearse."),
    Outcome.REFUSED: (
        4,
        (
            "Ask that site's operator. Correct the plan, the policy or the table if necessary, and"
            " submit again."
        ),
    ),
    Outcome.TOO_FEW_SITES: (
        5,
        (
            "Start every agent again. Under `serve` submit the study again; else repeat the"
            " command. Or lower min_sites, which makes another plan."
        ),
    ),
    Outcome.STALLED: (
        5,
        (
            "Start every agent again. Under `serve` submit the study again; else repeat the"
            " command. A larger [timeouts] stall waits longer."
        ),
    ),
    Outcome.SITE_FAULT: (6, "Fix the site's fault, named above, and run again."),
    Outcome.INTERRUPTED: (130, "The same command begins the run again."),
    Outcome.CANCELLED: (130, "Submit the study again for another run of it."),
}


def advice(outcome: Outcome) -> str:
    """The next action; empty if none is needed."""
    return _ENDS[outcome][1]


def exit_code(outcome: Outcome) -> int:
    """The exit code of a run, 0 for a good end."""
    return _ENDS[outcome][0]


def end_sentence(outcome: Outcome, reason: str) -> str:
    """The outcome, its reason if any, and the next action, as text."""
    why = f"{reason}{'' if reason.endswith('.') else '.'}" if reason else outcome.value
    return f"{outcome.name.lower()}: {why} {advice(outcome)}".rstrip()
