"""The work on a run's messages: its tables, its site, what is recorded, and its results.

A site's machine is its state machine for one run (`site_agent.machine.site`). For each message (1)
the machine and consent give actions (`site_agent.consent.participant`), (2) results are stored, (3)
each message's line is written to the ledger, and only then (4) the frames go to the daemon, which
sends them. Every method blocks: the daemon calls them in threads, one message of a run at a time.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import extract_tb
from typing import Any

from coreg_core.errors import CoregError, StorageError
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
from coreg_wire.clock import today
from coreg_wire.transport.codec import frames_of
from coreg_wire.transport.fields import MAX_TEXT
from coreg_wire.transport.service import release
from site_agent.consent.consent import Consent, training_of
from site_agent.consent.objection import refusal
from site_agent.consent.participant import Means, Participant
from site_agent.consent.policy import changed_keys
from site_agent.consent.request import describe_request
from site_agent.data.aligned_ids import guessable
from site_agent.data.sources import COLUMNS, shortened
from site_agent.disclosure import Disclosure
from site_agent.ledger import Ledger
from site_agent.machine import notices
from site_agent.machine.alignment import IdList
from site_agent.machine.results import AdditiveResult, AlignmentResult, Result, ScoringResult
from site_agent.machine.scoring import Batch
from site_agent.machine.session_events import PlanJudged, Worked, WorkMessage
from site_agent.machine.site import Missed, Send, Store
from site_agent.models import report
from site_agent.models.store import RunFacts
from site_agent.service.identity_in_use import KeysInUse
from site_agent.service.run_tables import NotAligned, Private, RunData, RunTables, Unusable
from site_agent.site_data import PrivateData


@dataclass
class _BegunRun:
    """A run that this site has begun, and the files of its result."""

    participant: Participant
    data: RunData
    target: str  # the column that it predicts; "" unless it trains
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
        reason = reason[:MAX_TEXT]  # it can quote another party, and is stored in several places
        self.put(PlanRefused(message.run, reason, for_now))
        return Worked(message, accepted=False, reason=reason, for_now=for_now)


@dataclass(eq=False)
class RunWorkers:
    """See the module's docstring."""

    in_use: KeysInUse  # of the site, and whether the operator compared the words
    tables: RunTables
    ledger: Ledger
    notify: Callable[[Notice], None]
    last: Result | None = None  # an agent for one run reports it
    written: tuple[Path, ...] = ()  # the files of the last result
    _begun: dict[str, _BegunRun] = field(default_factory=dict)
    _plans_that_align: dict[str, Plan] = field(default_factory=dict)  # their ids, before they begin
    _lock: threading.Lock = field(default_factory=threading.Lock)  # runs end in other threads

    def __post_init__(self) -> None:
        self.policy = self.tables.policy
        self.results = self.tables.results
        self.name = self.results.site
        self.consent = Consent(self.policy, self.ledger.memory, time.monotonic, today)

    def forget(self, run: str) -> None:
        with self._lock:
            self._begun.pop(run, None)
            self._plans_that_align.pop(run, None)
        self.ledger.memory.release(run)

    # --- plans ----------------------------------------------------------------------------------

    def judge(self, plan: Plan) -> PlanJudged:
        """Check a plan against policy, rows and ledger, before the operator is asked."""
        try:
            try:
                return self._judged_rows(plan, self._read(plan))
            except NotAligned as error:
                return self._judged_unaligned(plan, error.ids)
        except (CoregError, Unusable) as error:
            reason, for_now = self._reason_of(error)
            return PlanJudged(plan.run, reason, for_now=for_now)

    def _judged_rows(self, plan: Plan, data: RunData) -> PlanJudged:
        private = data.private
        self._register_instances(private)
        training_data = private if isinstance(private, PrivateData) else None
        columns = self._columns_text(plan)
        labelled_and_shared = 0
        if data.prepared is not None and training_data is not None:
            labelled_and_shared = len(data.prepared.labelled_and_shared)
            d = training_data.Z.shape[1]
            columns += f"; {d} features of {data.prepared.preprocessing.summary}"
        about = describe_request(
            plan,
            columns,
            len(private.Z),
            labelled_and_shared=labelled_and_shared,
            earlier_answers=self.ledger.memory.answered(plan, private.ids_digest),
        )
        return self._judged(plan, about, training_data, private.ids_digest)

    def _judged_unaligned(self, plan: Plan, ids: tuple[str, ...]) -> PlanJudged:
        labelled, names = self.tables.before_alignment(plan)
        used = f"; features of {shortened(names, COLUMNS)}" if names else ""
        own = f"{self._columns_text(plan)}{used}"
        columns = f"{own}; the alignment finds which of {len(ids)} ids are shared"
        # Every id, and every labelled row, can turn out to be shared.
        about = describe_request(
            plan,
            columns,
            len(ids),
            labelled_and_shared=labelled,
            id_warning=guessable(ids),
        )
        return self._judged(plan, about, None, "")

    def _judged(
        self,
        plan: Plan,
        about: dict[str, str],
        training_data: PrivateData | None,
        ids_digest: str,
    ) -> PlanJudged:
        objections = self.consent.objections(plan, self.name, training_data, ids_digest)
        about |= self.consent.trainings(plan, training_data)
        about["policy"] = changed_keys(self.policy)
        return PlanJudged(plan.run, refusal(objections, self.policy), about)

    def _reason_of(self, error: Exception) -> tuple[str, bool]:
        """The reason of a refusal, and whether the site can still join. It can if a table is at
        fault and the agent was started for one run.
        """
        if isinstance(error, Unusable) and self.tables.only:
            return f"{error} The run waits: correct it, and start the agent again.", True
        return str(error), False

    def _columns_text(self, plan: Plan) -> str:
        inputs = self.tables.inputs(plan)
        individuals = f"individuals by {inputs.id!r}"
        if plan.objective.needs != "rows" or not inputs.target:
            return individuals
        return f"predicts {inputs.target!r}; {individuals}"

    def _register_instances(self, data: Private) -> None:
        """Tell the ledger's memory the site's own name of these instances: their digest changes
        with the secret of the ids.
        """
        if data.instances:
            self.ledger.memory.know_as(data.ids_digest, data.instances)

    # --- messages -------------------------------------------------------------------------------

    def work(self, message: WorkMessage, *, listening: bool) -> tuple[list[bytes], Worked]:
        """The site's answers as frames, each recorded before it leaves.

        If the coordinator reads no longer, only the end of a run is handled. The coordinator sends
        every other message again in the next session.
        """
        if not listening and not isinstance(message, Finished):
            return [], Worked(message)
        outbox = _Outbox(self.ledger.record, listening)
        try:
            worked = self._work(message, outbox)
        except StorageError:
            # Such as a ledger that cannot be written. What is not recorded must not leave, so the
            # agent ends.
            raise
        except Exception as error:  # noqa: BLE001 - a defect of ours: no message ends the service
            self.notify(_defect(message.run, error))
            kind = type(error).__name__
            worked = outbox.refuse(
                message,
                f"an unexpected error here ({kind}), which its operator finds in the agent's log.",
            )
        if worked.accepted is False:  # None: this message decided nothing
            self.forget(message.run)
        return outbox.frames, worked

    def _work(self, message: WorkMessage, outbox: _Outbox) -> Worked:
        if isinstance(message, Proposal) and message.run not in self._begun:
            try:
                self._begin(message.plan)
            except NotAligned:
                outbox.put(Unaligned(message.run))
                return Worked(message, accepted=True)  # the site stays: an alignment follows
            except (CoregError, Unusable) as error:
                reason, for_now = self._reason_of(error)
                return outbox.refuse(message, reason, for_now=for_now)
        run = self._begun.get(message.run)
        if run is not None:
            return self._handled(run, message, outbox)
        # A run that has not begun waits for the alignment of its ids: only its end can follow.
        if isinstance(message, Finished):
            outbox.put(Fetched(message.run), outcome=message.outcome)
            return Worked(message)
        reason = "the coordinator sent a step before the ids of this site were aligned."
        return outbox.refuse(message, reason)

    def _begin(self, plan: Plan) -> None:
        """Read the data of a run and create its participant. NotAligned: its ids come first."""
        # Noted before reading, which can end here: `_write_ids` asks for this plan.
        if plan.align is not None:
            self._plans_that_align[plan.run] = plan
        data = self._read(plan)
        self._register_instances(data.private)
        private = self._with_score_limits(plan, data.private)
        token = os.urandom(16).hex()
        means = Means(self.in_use.keys, pin_threads, os.urandom, release=release(), token=token)
        participant = Participant(self.name, private, self.consent, means)
        target = "" if data.prepared is None else self.tables.target(plan)
        with self._lock:
            self._begun[plan.run] = _BegunRun(participant, data, target)

    def _read(self, plan: Plan) -> RunData:
        self.results.folder_of(plan)  # refuses a name of run or study that no folder can have
        return self.tables.read(plan)

    def _with_score_limits(self, plan: Plan, private: Private) -> Private:
        """The data with limits of joint scores: for a training the fewest sites of a score, for a
        scoring the individuals that each site may still ask for today.
        """
        match private:
            case PrivateData():
                fewest = self.consent.fewest_sites_of_scores(private)
                return replace(private, score_sites=fewest)
            case Batch():
                askedtoday = {site: self.ledger.memory.asked(site, today()) for site in plan.sites}
                remaining = {
                    site: self.policy.scores_a_day - asked for site, asked in askedtoday.items()
                }
                return replace(private, left=remaining)
            case _:
                return private

    def _handled(self, run: _BegunRun, message: WorkMessage, outbox: _Outbox) -> Worked:
        outcome = message.outcome if isinstance(message, Finished) else None
        departure: Worked | None = None
        for action in run.participant.handle(message):
            match action:
                case Store(result):
                    self._store(run, result)
                case Missed(reason):
                    departure = Worked(message, accepted=False, reason=reason)
                case Send(answer, disclosure):
                    outbox.put(answer, disclosure, outcome)
                    if isinstance(answer, PlanRefused):
                        departure = Worked(
                            message, accepted=False, reason=answer.reason, for_now=answer.for_now
                        )
        if departure is not None:
            return departure
        site = run.participant.site
        if site is None:  # the run ended before this site accepted a plan
            return Worked(message)
        if isinstance(message, Proposal):
            return Worked(message, accepted=True, room=site.room)
        news = site.computation.news(message.run) if isinstance(message, Step) else None
        if news is not None:
            self.notify(news)
        return Worked(message, models=len(run.written), room=site.room)

    # --- results --------------------------------------------------------------------------------

    def history_of(self, end: Notice) -> dict[str, Any]:
        """The entry of an ended, or refused, run in this site's own files.

        It has its models, and the fault behind a refusal.
        """
        run = self._begun.get(end.run)
        models = [] if run is None else [str(path) for path in run.written]
        entry = {"run": end.run, **end.fields, "models": models}
        # What other sites must not read of a fault is found by the sentence that they read.
        if fault := self.tables.fault_behind(str(end.fields.get("reason", ""))):
            entry["fault"] = fault
        return entry

    def _store(self, run: _BegunRun, result: Result) -> None:
        plan = run.participant.plan
        assert plan is not None, "a result comes after a plan"
        if plan.run in self.ledger.memory.finished:
            self.notify(notices.replaced(plan.run, plan.study))
        match result:
            case ScoringResult():
                files = self._write_scores(run, plan, result)
            case AlignmentResult():
                files = self._write_ids(run, plan, result)
            case _:
                files = self._write_models(run, plan, result)
        self.last = result
        self.written = files
        run.written = files

    def _write_models(self, run: _BegunRun, plan: Plan, result: Result) -> tuple[Path, ...]:
        prepared = run.data.prepared
        assert prepared is not None, "only a training has models"
        training = ""
        if isinstance(result, AdditiveResult) and len(prepared.data.y):
            # Of these rows, this one with them: the ledger has it already.
            times = self.ledger.memory.trainings(prepared.data)
            training = training_of(times, self.policy.openings)
        facts = RunFacts(
            target=run.target,
            id_column=self.tables.inputs(plan).id or "",
            words_compared=self.in_use.compared,
            training=training,
        )
        return self.results.put_models(plan, result, prepared, facts, self._note)

    def _note(self, text: str) -> None:
        self.notify(notices.finding(text))

    def _write_scores(self, run: _BegunRun, plan: Plan, result: ScoringResult) -> tuple[Path, ...]:
        for finding in result.findings:
            self._note(finding)
        if isinstance(plan.objective, Scoring) and plan.objective.standing:
            # The scores go to the program that asked for them, not to a file.
            if (on_demand := self.tables.on_demand) is not None:
                on_demand.deliver(plan, result)
            return ()
        scored = run.data.scored
        if result.scores is None or scored is None:
            return ()
        return self.results.save(plan, result, lambda folder: scored.write(result, folder))

    def _write_ids(self, run: _BegunRun, plan: Plan, result: AlignmentResult) -> tuple[Path, ...]:
        data = run.data.private
        if not result.outcome.good or not isinstance(data, IdList):
            return ()
        for sentence in report.aligned(result):
            self._note(sentence)
        waiting_run = aligns_for(plan.run)  # "" of a run that only aligns
        # An agent that was started anew has not seen the waiting plan. This one has the same sites.
        waiting_plan = self._plans_that_align.get(waiting_run, plan)
        path = self.tables.keep(plan, waiting_plan, data.ids, result.ids)
        self.forget(waiting_run)  # it is proposed again, and reads the shared rows
        return (path,)


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
