"""The work on a run's messages: read the data set, answer with its `Site`, record in the ledger, write the results.

Every method blocks: the daemon calls them in threads, one message of a run at a time.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coreg_core.errors import CoregError
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.messages import Fetched, Finished, FromSite, PlanRefused, Proposal, Step, Unaligned
from coreg_core.protocol.outcomes import Notice, Outcome
from coreg_core.protocol.plan import Plan, aligns_for
from coreg_wire.identity.names import check_study_name
from coreg_wire.transport.codec import site_message_to_frames
from coreg_wire.transport.service import release
from site_agent.consent.memory import Memory
from site_agent.consent.objections import Consent, objections, refusal
from site_agent.consent.policy import Policy
from site_agent.data.prepare import DataSets, Prepared
from site_agent.data.shared_set import AlignedIds, guessable
from site_agent.ledger import Ledger
from site_agent.machine import notices
from site_agent.machine.agent import Judged, RunMessage, Worked
from site_agent.machine.alignment import IdList
from site_agent.machine.job import SiteResult, Told
from site_agent.machine.notices import describe_request
from site_agent.machine.replica import Keys
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Site
from site_agent.models import findings
from site_agent.models.batch import Scored
from site_agent.models.store import Results
from site_agent.service.run_tables import NotAligned, RunTables, Unusable
from site_agent.session.stream import Counters
from site_agent.site_data import PrivateData


@dataclass
class _Worker:
    """An accepted run: its site, and the data for its result.

    ``unsaid``: the disclosure of an answer that was not sent. ``stored``: the result that is on the disk, in files ``written``.
    """

    site: Site
    prepared: Prepared | None
    scored: Scored | None
    target: str
    unsaid: Told | None = None
    stored: SiteResult | None = None
    written: tuple[Path, ...] = ()
    list: IdList | None = None


class RunWorkers:
    """See the module's docstring."""

    def __init__(
        self,
        name: str,
        policy: Policy,
        keys: Keys | None,
        results: Results,
        data_sets: DataSets,
        aligned: AlignedIds,
        ledger: Ledger,
        notify: Callable[[Notice], None],
    ):
        self.name, self.policy, self.keys, self.results = name, policy, keys, results
        self.ledger, self.counters = ledger, Counters()
        self.tables = RunTables(name, data_sets, aligned, notify)
        self.last: SiteResult | None = None
        self.written: tuple[Path, ...] = ()  # the files of the last result
        self._notify = notify
        self._workers: dict[str, _Worker] = {}
        self._align = dict[str, Plan]()  # plans of runs that align the ids first
        self._lock = threading.Lock()

    def forget(self, run: str) -> None:
        with self._lock:
            worker = self._workers.pop(run, None)
            self._align.pop(run, None)
        if worker is None or worker.unsaid is None:
            self.ledger.memory.release(run)

    def room(self, run: str) -> int | None:
        """The maximum number of words in a message of that run."""
        worker = self._workers.get(run)
        if worker is None or worker.site.plan is None:
            return None
        return worker.site.plan.most_words(worker.site.n_unlabelled, of_all=True)

    # --- plans ----------------------------------------------------------------------------------------------------

    def judge(self, plan: Plan) -> Judged:
        """Check a plan against policy, rows and ledger, before the operator is asked."""
        try:
            _check_names(plan)
            prepared, data, _ = self.tables.read(plan, self.policy, self.results)
            memory, rows = self._memory_of(data), data if isinstance(data, PrivateData) else None
            found = objections(plan, self.policy, rows, memory, data.ids_digest)
            both = 0 if prepared is None else len(prepared.labelled_and_shared)
            given = memory.recall(plan, data.ids_digest).answered
            about = describe_request(plan, self._columns(plan), len(data.Z), both, given)
            return Judged(plan.run, refusal(found, self.policy), about=about)
        except NotAligned as error:
            found = objections(plan, self.policy, None, self.ledger.memory, "")
            about = describe_request(
                plan, self._columns(plan), len(error.ids), error.labelled, warning=guessable(error.ids)
            )
            return Judged(plan.run, refusal(found, self.policy), about=about)
        except (CoregError, Unusable) as error:
            return Judged(plan.run, str(error))

    def _columns(self, plan: Plan) -> str:
        inputs = self.tables.inputs(plan)
        predicts = f"predicts {inputs.target!r}; " if plan.objective.needs == "rows" and inputs.target else ""
        return f"{predicts}individuals by {inputs.id!r}"

    def work(self, message: RunMessage, *, listening: bool) -> tuple[list[bytes], Worked]:
        """The site's answers as frames, each recorded before it leaves. If ``listening`` is false, none is recorded."""
        part = "plan" if isinstance(message, Proposal) else "end" if isinstance(message, Finished) else "question"
        with self.counters.timed(part):
            if isinstance(message, Proposal) and message.plan.align is not None:
                self._align[message.run] = message.plan
            if isinstance(message, Proposal) and message.run not in self._workers:
                try:
                    refusal = self._begin(message.plan)
                except NotAligned:
                    return self._recorded([Unaligned(message.run)], listening), Worked(message, accepted=True)
                if refusal is not None:
                    return self._recorded([refusal], listening), self._proposed(message, refusal)
            if message.run not in self._workers:
                return self._unaligned(message, listening)
            return self._answered(message, listening=listening)

    def _unaligned(self, message: RunMessage, listening: bool) -> tuple[list[bytes], Worked]:
        """The answer in a run whose ids were not aligned: only its end can follow."""
        if not isinstance(message, Finished):
            return [], Worked(
                message, breach=f"sent a step of run {message.run}, before the ids of this site were aligned."
            )
        self.counters.ended[message.outcome.name] += 1
        return self._recorded([Fetched(message.run)], listening, outcome=message.outcome), Worked(message)

    def _begin(self, plan: Plan) -> PlanRefused | None:
        """Create the site of a run; if that fails, return the message with the reason."""
        try:
            _check_names(plan)
            prepared, data, scored = self.tables.read(plan, self.policy, self.results)
            consent = Consent(self.policy, self._memory_of(data), time.monotonic)
        except (CoregError, Unusable) as error:
            return PlanRefused(plan.run, str(error))
        target = "" if prepared is None else self.tables.inputs(plan).target or ""
        token = os.urandom(16).hex()
        site = Site(self.name, data, consent, self.keys, pin_threads=pin_threads, release=release(), token=token)
        worker = _Worker(site, prepared, scored, target, list=data if isinstance(data, IdList) else None)
        with self._lock:
            self._workers[plan.run] = worker
        return None

    def _memory_of(self, data: PrivateData | Batch | IdList) -> Memory:
        """The ledger's memory, which knows these instances by the site's own name."""
        if data.instances:
            self.ledger.memory.know_as(data.ids_digest, data.instances)
        return self.ledger.memory

    def history_of(self, over: Notice) -> dict[str, Any]:
        """The entry of an ended run in this site's own files: with its models, and the fault behind a refusal."""
        worker = self._workers.get(over.run)
        models = [] if worker is None else [str(path) for path in worker.written]
        fault = self.tables.fault_behind(str(over.fields.get("reason", "")))
        return {"run": over.run, **over.fields, "models": models, **({"fault": fault} if fault else {})}

    def _proposed(self, message: Proposal, answer: FromSite) -> Worked:
        if isinstance(answer, PlanRefused):
            self.counters.refusals += 1
            self.forget(message.run)
            return Worked(message, accepted=False, reason=answer.reason, for_now=answer.for_now)
        return Worked(message, accepted=True)

    # --- answers --------------------------------------------------------------------------------------------------

    def _answered(self, message: RunMessage, *, listening: bool) -> tuple[list[bytes], Worked]:
        worker = self._workers[message.run]
        site = worker.site
        before = site.progress
        answers = site.handle(message)
        if site.breach is not None:
            return [], Worked(message, breach=site.breach)
        if site.result is not None and site.result is not worker.stored:
            # Before the last answer leaves, which confirms it.
            worker.stored, worker.written = site.result, self._deliver(worker, site.result)
        told = site.told
        if isinstance(message, Step):
            told = told or worker.unsaid  # an unsent answer is recorded when the coordinator repeats its step
            worker.unsaid = None if listening else told
        outcome = message.outcome if isinstance(message, Finished) else None
        frames = self._recorded(answers, listening, told, outcome)
        if isinstance(message, Step):
            progress = site.progress
            if progress is not None and (before is None or progress.round > before.round):
                self._notify(notices.progressed(message.run, progress))
            if (portion := site.portion) is not None:
                self._notify(notices.aligned_so_far(message.run, portion))
        if isinstance(message, Proposal):
            [answer] = answers
            # Ended, if it is the same attempt.
            return frames, self._proposed(message, answer)
        refused = next((a for a in answers if isinstance(a, PlanRefused)), None)
        if refused is not None:
            self.forget(message.run)
            return frames, Worked(message, accepted=False, reason=refused.reason)
        return frames, Worked(message, models=len(worker.written))

    def _recorded(
        self, answers: Sequence[FromSite], listening: bool, told: Told | None = None, outcome: Outcome | None = None
    ) -> list[bytes]:
        frames: list[bytes] = []
        for answer in answers if listening else ():
            frames += site_message_to_frames(self.ledger.record(answer, told, outcome))
        return frames

    def _deliver(self, worker: _Worker, result: SiteResult) -> tuple[Path, ...]:
        self.counters.ended[result.outcome.name] += 1
        self.last, self.written = result, ()
        if (plan := result.plan) is not None and result.sites:  # otherwise the run ended before its computation did
            self.written = self._written(worker, plan, result)
        return self.written

    def _written(self, worker: _Worker, plan: Plan, result: SiteResult) -> tuple[Path, ...]:
        def note(text: str) -> None:
            self._notify(notices.finding(text))

        if worker.scored is not None:
            for finding in result.findings:
                note(finding)
            return self.results.put_scores(plan, result, worker.scored)
        if plan.objective.needs == "ids":
            for sentence in findings.aligned(result):
                note(sentence)
            if result.aligned is None or worker.list is None:
                return ()
            above = aligns_for(plan.run)
            path = self.tables.keep(plan, self._align.get(above, plan), worker.list.ids, result.aligned.ids)
            self.forget(above)  # it reads its rows again
            return (path,)
        assert worker.prepared is not None
        return self.results.put_models(plan, result, worker.prepared, worker.target, note)


def _check_names(plan: Plan) -> None:
    """Run and study name folders here."""
    check_study_name(plan.run, "run")
    if plan.study:
        check_study_name(plan.study, "study")
