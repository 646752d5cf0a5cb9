r"""A run of a standing plan at a site: members ask for single individuals, and no other is scored.

    asked → records → scores

Each member says which individuals it asks for: one bit for each that the alignment found, sealed
for the members. So nobody can ask for an id that is not shared, and the coordinator sees the sizes
of a whole scoring. If no member asks, the run ends there. The rest is a scoring in which a site has
a record of those alone that a member asks for, and sends its part of each to the one who asked.

A run that one member causes serves all that ask by then. Of the individuals of a member that asked
for more than its limit of the day, a site states no record: the run goes on for the others.
"""

from dataclasses import replace

import numpy as np
from jaxtyping import Bool

from coreg_core.errors import BadData
from coreg_core.outcomes import Outcome
from site_agent.disclosure import Pairs
from site_agent.machine.objective import Answers, Fold, Question, Reply
from site_agent.machine.results import ScoringResult
from site_agent.machine.scoring import Batch, ScoringComputation


class StandingComputation(ScoringComputation):
    """See the module's docstring."""

    def begin(self, sites: tuple[str, ...], key: bytes, chain: bytes, fold: Fold) -> None:
        if not hasattr(self, "_every"):
            self._every: Batch = self.batch
        self.batch = self._every
        super().begin(sites, key, chain, fold)
        self._question = self._asked("asked")
        self._asks: dict[str, Bool[np.ndarray, " m"]] = {}  # of each member

    def answer(self, question: Question, chain: bytes) -> Reply:
        if question.kind == "asked":
            bits = np.zeros(self.n_unlabelled, dtype=np.bool_)
            bits[list(self.batch.wanted) if self.name in self._receivers else []] = True
            return Reply(to_all=np.packbits(bits).tobytes())
        reply = super().answer(question, chain)
        if question.kind == "records":
            return replace(reply, asked=self._heard())
        steps = self._steps()
        to_each = {
            receiver: np.where(self._mine & self._asks[receiver], steps, 0).tobytes()
            for receiver in reply.to_each
        }
        return replace(reply, to_each=to_each)

    def _opened(self) -> Pairs | None:
        """The scores that another member reads."""
        others = [asks for site, asks in self._asks.items() if site != self.name]
        return self._pairs(self._mine & np.any(others, axis=0))

    def _heard(self) -> dict[str, int]:
        """How many individuals each member within its limit asks for, this one too."""
        asked = {site: int(asks.sum()) for site, asks in self._asks.items()}
        left = self.batch.left
        return {site: n for site, n in asked.items() if 0 < n <= left.get(site, n)}

    def take(self, question: Question, answers: Answers, chain: bytes) -> None:
        if question.kind != "asked":
            super().take(question, answers, chain)
            return
        for site in self._sites:
            bits = np.frombuffer(answers.to_all[site], np.uint8)
            asks = np.unpackbits(bits, count=self.n_unlabelled).astype(np.bool_)
            if site not in self._receivers and asks.any():
                raise BadData(f"{site} asks for scores, and the plan has none for it.")
            self._asks[site] = asks
        served = [self._asks[site] for site in self._heard()]
        missing = self.batch.missing | ~np.any([np.zeros_like(self.batch.missing), *served], axis=0)
        self.batch = replace(self.batch, missing=missing)
        self._question = self._asked("records") if self._asks_any else None
        self.rounds += 1

    @property
    def _asks_any(self) -> bool:
        return any(asks.any() for asks in self._asks.values())

    @property
    def outcome(self) -> tuple[Outcome, str]:
        if self._asks_any:
            return super().outcome
        return Outcome.CONVERGED, "no site asked for a score"

    def result(self) -> ScoringResult:
        """The scores of those that this site asked for."""
        own = self._asks[self.name]
        if self._scores is None or not own.any():
            return ScoringResult(*self.outcome)
        return replace(super().result(), scores=np.where(own, self._scores, np.nan).T, findings=())
