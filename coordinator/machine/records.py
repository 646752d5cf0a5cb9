"""Records that a run writes before it acts, and what a store has of an unfinished run: plain frozen values.

No record has a number that a site computed from its rows.
"""

from dataclasses import dataclass
from typing import TypeAlias

from coreg_core.protocol.messages import Countersigned, Report
from coreg_core.protocol.outcomes import Outcome

Sites: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class AttemptBegan:
    """An attempt begins with these sites, in site order."""

    attempt: int
    participants: Sites


@dataclass(frozen=True)
class StepDone:
    """All sites have answered; ``number`` counts the steps of a run over its attempts."""

    number: int
    attempt: int
    answered: int
    report: Report


@dataclass(frozen=True)
class Ended:
    """The run has ended. If the computation has ended, all participants have stored its result."""

    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class HeadSigned:
    """The head of a site's ledger at the time of its `Fetched`, with both signatures. It has no effect on the run.

    ``certificate`` is the site's (DER, hexadecimal); ``receipt`` was sent to the site.
    """

    site: str
    signature: str
    certificate: str
    receipt: Countersigned


Record: TypeAlias = AttemptBegan | StepDone | Ended | HeadSigned


@dataclass(frozen=True)
class Begun:
    """What the store has of an unfinished run: its last attempt and the number of steps over all attempts.

    Before the first attempt ``attempt`` is -1 and there are no participants.
    """

    attempt: int = -1
    participants: Sites = ()
    steps: int = 0


NOT_BEGUN = Begun()
