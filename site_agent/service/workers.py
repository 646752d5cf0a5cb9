"""The work on a run's messages: its tables, its site, what is recorded, and its results.

For each message (1) the site's machine and consent give actions (`site_agent.consent.participant`),
(2) results are stored, (3) each message's line is written to the ledger, and only then (4) the
frames go to the daemon, which sends them. Every method blocks: the daemon calls them in threads,
one message of a run at a time.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

from coreg_core.errors import CoregError
from coreg_core.messages import (
    Fetched,
    Finished,
    FromSite,
    PlanRefused,
    Proposal,
    Step,
    Unaligned,
)
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan, aligns_for
from coreg_core.threads import pin_threads
from coreg_wire.clock import timestamp
from coreg_wire.transport.codec import frames_of
from coreg_wire.transport.service import release
from site_agent.consent.consent import Consent, training_of
from site_agent.consent.objection import refusal
from site_agent.consent.participant import Means, Participant
from site_agent.consent.request import describe_request
from site_agent.data.aligned_ids import guessable
from site_agent.disclosure import Disclosure
from site_agent.ledger import Ledger
from site_agent.machine import notices
from site_agent.machine.alignment import IdList
from site_agent.machine.results import AdditiveResult, AlignmentResult, Result, ScoringResult
from site_agent.machine.scoring import Batch
from site_agent.machine.session_events import Judged, Worked, WorkMessage
from site_agent.machine.site import Missed, Send, Store
from site_agent.models import report
from site_agent.models.store import RunFacts
from site_agent.service.identity_in_use import KeysInUse
from site_agent.service.run_tables import NotAligned, Private, RunData, RunTables, Unusable
from site_agent.site_data import PrivateData


@dataclass
class _Worker:
    """A run that this site has begun, and the files of its result."""

    participant: Participant
    data: RunData
    target: str
    written: tuple[Path, ...] = ()


@dataclass
class _Outbox:
    """The frames of one message's answers, each recorded before it is in here."""

    record: Callable[[FromSite, Disclosure | None, Outcome | None], FromSite]
    listening: bool  # if false, the coordinator reads nothing: nothing is recorded
    frames: list[bytes] = field(default_factory=list)

    def put(
        self,
        message: FromSite,
        disclosure: Disclosure | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        if self.listening:
            self.frames += frames_of(self.record(message, disclosure, outcome))

    def refuse(self, message: WorkMessage, reason: str, *, for_now: bool = False) -> Worked:
        self.put(PlanRefused(message.run, reason, for_now))
        return Worked(message, accepted=False, reason=reason, for_now=for_now)


@dataclass(eq=False)
class RunWorkers:
    """See the module's docstring."""

    in_use: KeysInUse
    tables: RunTables
    ledger: Ledger
    notify: Callable[[Notice], None]
    last: Result | None = None
    written: tuple[Path, ...] = ()  # the files of the last result
    _workers: dict[str, _Worker] = field(default_factory=dict)
    _align: dict[str, Plan] = field(default_factory=dict)  # plans of runs that align the ids first
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.policy = self.tables.policy
        self.results = self.tables.results
        self.name = self.results.site
        self.consent = Consent(self.policy, self.ledger.memory, time.monotonic, _today)

    def forget(self, run: str) -> None:
        with self._lock:
            self._workers.pop(run, None)
            self._align.pop(run, None)
        self.ledger.memory.release(run)

    # --- plans ----------------------------------------------------------------------------------

    def judge(self, plan: Plan) -> Judged:
        """Check a plan against policy, rows and ledger, before the operator is asked."""
        try:
            try:
                return self._judged_rows(plan, self._read(plan))
            except NotAligned as error:
                return self._judged_unaligned(plan, error.ids)
        except (CoregError, Unusable) as error:
            reason, waits = self._against(error)
            return Judged(plan.run, reason, for_now=waits)

    def _judged_rows(self, plan: Plan, data: RunData) -> Judged:
        private = data.private
        self._know(private)
        rows = private if isinstance(private, PrivateData) else None
        columns = self._columns(plan)
        both = 0
        if data.prepared is not None and rows is not None:
            both = len(data.prepared.labelled_and_shared)
            columns += f"; {rows.Z.shape[1]} features of {data.prepared.preprocessing.summary}"
        given = self.ledger.memory.answered(plan, private.ids_digest)
        about = describe_request(plan, columns, len(private.Z), both=both, given=given)
        return self._judged(plan, about, rows, private.ids_digest)

    def _judged_unaligned(self, plan: Plan, ids: tuple[str, ...]) -> Judged:
        columns = f"{self._columns(plan)}; the alignment finds which of {len(ids)} ids are shared"
        about = describe_request(
            plan,
            columns,
            len(ids),
            both=self.tables.labelled(plan),
            unaligned=guessable(ids),
        )
        return self._judged(plan, about, None, "")

    def _judged(
        self, plan: Plan, about: dict[str, str], rows: PrivateData | None, ids_digest: str
    ) -> Judged:
        objections = self.consent.objections(plan, self.name, rows, ids_digest)
        trainings = self.consent.trainings(plan, rows)
        return Judged(plan.run, refusal(objections, self.policy), about | trainings)

    def _against(self, error: Exception) -> tuple[str, bool]:
        """The reason, and whether the run waits: for a table that can be mended, if its agent is
        for one run.
        """
        if isinstance(error, Unusable) and self.tables.only:
            return f"{error} The run waits: correct it, and start the agent again.", True
        return str(error), False

    def _columns(self, plan: Plan) -> str:
        inputs = self.tables.inputs(plan)
        individuals = f"individuals by {inputs.id!r}"
        if plan.objective.needs != "rows" or not inputs.target:
            return individuals
        return f"predicts {inputs.target!r}; {individuals}"

    def _know(self, data: Private) -> None:
        """The ledger's memory knows these instances by the site's own name."""
        if data.instances:
            self.ledger.memory.know_as(data.ids_digest, data.instances)

    # --- messages -------------------------------------------------------------------------------

    def work(self, message: WorkMessage, *, listening: bool) -> tuple[list[bytes], Worked]:
        """The site's answers as frames, each recorded before it leaves.

        If the coordinator reads no longer, only the end of a run is handled: it repeats all others
        in the next session.
        """
        outbox = _Outbox(self.ledger.record, listening)
        if not listening and not isinstance(message, Finished):
            return [], Worked(message)
        try:
            worked = self._work(message, outbox)
        except CoregError:
            raise  # of the disk: what cannot be recorded must not leave
        except Exception as error:  # noqa: BLE001 - a defect of ours: no message ends the service
            self.notify(_defect(message.run, error))
            kind = type(error).__name__
            worked = outbox.refuse(
                message,
                f"an unexpected error here ({kind}), which its operator finds in the agent's log.",
            )
        if worked.accepted is False:
            self.forget(message.run)
        return outbox.frames, worked

    def _work(self, message: WorkMessage, outbox: _Outbox) -> Worked:
        if isinstance(message, Proposal) and message.run not in self._workers:
            try:
                self._begin(message.plan)
            except NotAligned:
                outbox.put(Unaligned(message.run))
                return Worked(message, accepted=True)
            except (CoregError, Unusable) as error:
                reason, waits = self._against(error)
                return outbox.refuse(message, reason, for_now=waits)
        worker = self._workers.get(message.run)
        if worker is not None:
            return self._handled(worker, message, outbox)
        # The ids of this run were not aligned: only its end can follow.
        if isinstance(message, Finished):
            outbox.put(Fetched(message.run), outcome=message.outcome)
            return Worked(message)
        reason = "the coordinator sent a step before the ids of this site were aligned."
        return outbox.refuse(message, reason)

    def _begin(self, plan: Plan) -> None:
        """Create the site of a run."""
        if plan.align is not None:
            self._align[plan.run] = plan
        data = self._read(plan)
        self._know(data.private)
        private = self._limited(plan, data.private)
        token = os.urandom(16).hex()
        means = Means(self.in_use.keys, pin_threads, os.urandom, release=release(), token=token)
        participant = Participant(self.name, private, self.consent, means)
        target = "" if data.prepared is None else self.tables.target(plan)
        with self._lock:
            self._workers[plan.run] = _Worker(participant, data, target)

    def _read(self, plan: Plan) -> RunData:
        self.results.folder_of(plan)  # the names of run and study are names of folders
        return self.tables.read(plan)

    def _limited(self, plan: Plan, private: Private) -> Private:
        """The data with what policy and ledger leave of joint scores."""
        match private:
            case PrivateData():
                fewest = self.consent.fewest_sites_of_scores(private)
                return replace(private, score_sites=fewest)
            case Batch():
                most = self.policy.scores_a_day
                asked = self.ledger.memory.asked
                left = {site: most - asked(site, _today()) for site in plan.sites}
                return replace(private, left=left)
            case _:
                return private

    def _handled(self, worker: _Worker, message: WorkMessage, outbox: _Outbox) -> Worked:
        outcome = message.outcome if isinstance(message, Finished) else None
        left: Worked | None = None
        for action in worker.participant.handle(message):
            match action:
                case Store(result):
                    self._store(worker, result)
                case Missed(reason):
                    left = Worked(message, accepted=False, reason=reason)
                case Send(answer, disclosure):
                    outbox.put(answer, disclosure, outcome)
                    if isinstance(answer, PlanRefused):
                        left = Worked(
                            message, accepted=False, reason=answer.reason, for_now=answer.for_now
                        )
        if left is not None:
            return left
        site = worker.participant.site
        if site is None:  # its end came before an offer
            return Worked(message)
        if isinstance(message, Proposal):
            return Worked(message, accepted=True, room=site.room)
        news = site.computation.news(message.run) if isinstance(message, Step) else None
        if news is not None:
            self.notify(news)
        return Worked(message, models=len(worker.written), room=site.room)

    # --- results --------------------------------------------------------------------------------

    def history_of(self, over: Notice) -> dict[str, Any]:
        """The entry of an ended run in this site's own files.

        It has its models, and the fault behind a refusal.
        """
        worker = self._workers.get(over.run)
        models = [] if worker is None else [str(path) for path in worker.written]
        entry = {"run": over.run, **over.fields, "models": models}
        if fault := self.tables.fault_behind(str(over.fields.get("reason", ""))):
            entry["fault"] = fault
        return entry

    def _store(self, worker: _Worker, result: Result) -> None:
        plan = worker.participant.plan
        assert plan is not None, "it has a result of it"
        match result:
            case ScoringResult():
                files = self._write_scores(worker, plan, result)
            case AlignmentResult():
                files = self._write_ids(worker, plan, result)
            case _:
                files = self._write_models(worker, plan, result)
        self.last = result
        self.written = files
        worker.written = files

    def _write_models(self, worker: _Worker, plan: Plan, result: Result) -> tuple[Path, ...]:
        prepared = worker.data.prepared
        assert prepared is not None, "it trains"
        training = ""
        if isinstance(result, AdditiveResult) and len(prepared.data.y):
            times = self.ledger.memory.trainings(prepared.data)
            training = training_of(times, self.policy.openings)
        facts = RunFacts(
            worker.target, self.tables.inputs(plan).id or "", self.in_use.compared, training
        )
        return self.results.put_models(plan, result, prepared, facts, self._note)

    def _note(self, text: str) -> None:
        self.notify(notices.finding(text))

    def _write_scores(self, worker: _Worker, plan: Plan, result: ScoringResult) -> tuple[Path, ...]:
        for finding in result.findings:
            self._note(finding)
        if isinstance(plan.objective, Scoring) and plan.objective.standing:
            if (on_demand := self.tables.on_demand) is not None:
                on_demand.deliver(plan, result)
            return ()
        scored = worker.data.scored
        if result.scores is None or scored is None:
            return ()
        return self.results.save(plan, result, lambda folder: scored.write(result, folder))

    def _write_ids(self, worker: _Worker, plan: Plan, result: AlignmentResult) -> tuple[Path, ...]:
        own = worker.data.private
        if not result.outcome.good or not isinstance(own, IdList):
            return ()
        for sentence in report.aligned(result):
            self._note(sentence)
        above = aligns_for(plan.run)
        path = self.tables.keep(plan, self._align.get(above, plan), own.ids, result.ids)
        self.forget(above)  # it reads its rows again
        return (path,)


def _today() -> str:
    return timestamp()[:10]


def _defect(run: str, error: Exception) -> Notice:
    """Where it happened, and nothing of what the error says: it could quote a cell."""
    frames = [
        f"{Path(frame.filename).name}:{frame.lineno}"
        for frame in extract_tb(error.__traceback__)[-6:]
    ]
    kind = type(error).__name__
    where = " → ".join(frames)
    text = f"run {run} ended here by a defect of coreg ({kind} at {where}). Please report it"
    return Notice("defect", text, "warning", run, fields={"kind": kind, "where": frames})
