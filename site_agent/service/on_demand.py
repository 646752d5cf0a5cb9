"""Scores on demand: a request of this site's own program that waits for a run of a standing plan.

(1) A request names ids. Those that the alignment did not find are answered here, by the joined
model: no one else hears of them. (2) For the others the coordinator is asked for a run, without an
id. (3) The run takes what waits by then (`wanted`), and (4) brings the scores (`deliver`).

Programs call `score` in threads of their own, one after another.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from coreg_core.errors import Refused, Unreachable
from coreg_core.plan import MOST_RUNS, Plan, is_on_demand
from site_agent.data.ids import normalised
from site_agent.machine.results import ScoringResult
from site_agent.machine.scoring import Batch
from site_agent.models.batch import COVERAGE, Alone, Scored, as_answers, interval
from site_agent.service.state_store import StateStore

SECONDS = 30.0  # timeout of a request
Known = tuple[Batch, Scored, Alone]


@dataclass
class _Request:
    """Individuals of whom a run brings the scores."""

    study: str
    ids: frozenset[str]
    run: str = ""  # which took it
    scores: "Future[ScoringResult]" = field(default_factory=Future)


@dataclass(eq=False)
class OnDemand:
    """See the module's docstring.

    ``read``: what the site knows of a plan's individuals. ``ask`` asks the coordinator for a run of
    a study; False: there is no connection.
    """

    state: StateStore
    read: Callable[[Plan], Known]
    ask: Callable[[str], bool]
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _request: _Request | None = None

    # --- a run of the plan ----------------------------------------------------------------------

    def wanted(self, plan: Plan, ids: Sequence[str]) -> tuple[int, ...]:
        """The places of the individuals that wait."""
        if (request := self._open(plan.study)) is None:
            return ()
        request.run = plan.run
        return tuple(i for i, text in enumerate(ids) if text in request.ids)

    def deliver(self, plan: Plan, result: ScoringResult) -> None:
        """Give the scores to who asked; the study's first run makes the plan stand here."""
        if not is_on_demand(plan.run):
            self.state.keep_standing(plan)
            return
        request = self._open(plan.study)
        if request is not None and request.run == plan.run and result.scores is not None:
            request.scores.set_result(result)

    def failed(self, study: str, reason: str) -> None:
        """A run came to nothing; ``study``: "" of a run that did not begin."""
        if (request := self._open(study)) is not None:
            request.scores.set_exception(Refused(f"no score: {reason}"))

    def _open(self, study: str) -> _Request | None:
        """The request that waits for a run of the study."""
        request = self._request
        if request is None or study not in ("", request.study) or request.scores.done():
            return None
        return request

    # --- a request ------------------------------------------------------------------------------

    def score(self, ids: Sequence[str], study: str = "") -> dict[str, Any]:
        """The answer to a request.

        Raises
        ------
        UsageError, Unreachable, Refused
            there is no standing plan, or the table has no row of an id; no coordinator, or no
            answer in time; a site refuses.
        """
        plan = self.state.standing(study)
        batch, scored, alone = self.read(plan)
        rule = "exact" if plan.align is None else plan.align.ids
        texts = [normalised(text, rule) for text in ids]
        rows = alone.answers(texts, COVERAGE)
        places = {text: i for i, text in enumerate(batch.ids)}
        asked = frozenset(texts) & places.keys()
        if asked:
            with self._turn:
                result = self._result(_Request(plan.study, asked))
            scores = answers_by_place(result, scored)
            rows = [
                scores.get(places.get(text, -1), row) for text, row in zip(texts, rows, strict=True)
            ]
        answers = [{"id": given, **row} for given, row in zip(ids, rows, strict=True)]
        about = {"study": plan.study, "model": batch.of_run, "target": alone.model.target}
        return {**about, "interval": COVERAGE, "scores": answers}

    def _result(self, request: _Request) -> ScoringResult:
        self._request = request
        try:
            if not self.ask(request.study):
                raise Unreachable("the agent is not connected to the coordinator.")
            return request.scores.result(SECONDS)
        except NotInTime:
            raise Unreachable(
                f"no score within {SECONDS:g} s. Other sites are away; or this site has asked for"
                f" {MOST_RUNS} runs in a day, the most (a request can name many ids); or study"
                f" {request.study} does not stand at the coordinator any more: its operator can"
                " submit it again."
            ) from None
        finally:
            self._request = None


def answers_by_place(result: ScoringResult, scored: Scored) -> Mapping[int, dict[str, Any]]:
    """The scores that there are, with this site's corrections."""
    assert result.scores is not None
    assert result.missing is not None
    places = np.unique(np.nonzero(~np.isnan(result.scores))[0])
    columns = as_answers(scored.classes, scored.finished(result.scores, places))
    if not scored.classes:
        columns |= interval(columns["score"], scored.noise, result.missing[places])
    rows = zip(places.tolist(), pl.DataFrame(columns).to_dicts(), strict=True)
    return {i: {**row, "sites": result.present[i], "from": "sites"} for i, row in rows}
