"""The work on a run's messages: its tables, which a run needs and whose faults the operator hears; its site; its results.

Every method blocks: the daemon calls them in threads, one message of a run at a time.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from coreg_core.errors import CoregError, UsageError
from coreg_core.messages import Fetched, Finished, FromSite, PlanRefused, Proposal, Step, Unaligned
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan, aligns_for
from coreg_core.threads import pin_threads
from coreg_wire.clock import timestamp
from coreg_wire.terminal.command_line import owner_hint
from coreg_wire.transport.codec import frames_of
from coreg_wire.transport.service import release
from site_agent.consent.memory import Memory
from site_agent.consent.objections import Consent, Policy, objections, refusal, trainings
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import (
    UNSHARED,
    AlignedIds,
    DataSets,
    Prepared,
    SharedIds,
    guessable,
    ids_digest,
    keyed,
    own_name,
)
from site_agent.data.sources import BadTable, Faults
from site_agent.data.tables import read_table
from site_agent.ledger import Ledger
from site_agent.machine import notices
from site_agent.machine.additive import task_fault
from site_agent.machine.agent import Judged, RunMessage, Worked
from site_agent.machine.alignment import IdList
from site_agent.machine.job import Disclosure, SiteResult
from site_agent.machine.notices import BEFORE, describe_request
from site_agent.machine.replica import Keys
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Site
from site_agent.models import findings
from site_agent.models.batch import Scored, batch_of
from site_agent.models.store import ModelStore
from site_agent.site_data import PrivateData


class Unusable(Exception):
    """A data set cannot be used. The cause can name rows, so the coordinator does not receive it."""


class NotAligned(Exception):
    """No alignment of these own ids with the sites of the plan is known."""

    def __init__(self, ids: tuple[str, ...]):
        super().__init__()
        self.ids = ids


class RunTables:
    """See the module's docstring."""

    def __init__(
        self, name: str, data_sets: DataSets, aligned: AlignedIds, notify: Callable[[Notice], None]
    ):
        self.data_sets, self._aligned = data_sets, aligned
        self.troubles: dict[str, str] = {}  # data sets that cannot be used, and why
        self.only = ""  # "training" or "scoring" of an agent of one run
        self._name, self._notify = name, notify
        self._shown = ""  # the run whose ids the operator has seen

    def inputs(self, plan: Plan) -> Inputs:
        return self._named(plan, self.data_sets.choose(plan.data))

    def _named(self, plan: Plan, name: str) -> Inputs:
        return self.data_sets.named(
            name, plan.target, plan.id, trains=plan.objective.needs == "rows"
        )

    def read(
        self, plan: Plan, policy: Policy, results: ModelStore
    ) -> tuple[Prepared | None, PrivateData | Batch | IdList, Scored | None]:
        """The current data for the run. The coordinator can receive a `CoregError`, and never the cause of `Unusable`."""
        kind = "scoring" if isinstance(plan.objective, Scoring) else "training"
        if self.only not in ("", kind) and not isinstance(plan.objective, Alignment):
            raise UsageError(
                f"this agent was started for {self.only}: `coreg-agent --data …` trains, and `coreg-agent score` scores."
            )
        if isinstance(plan.objective, Scoring):
            return self._batch(plan, plan.objective, policy, results)
        if isinstance(plan.objective, Alignment):
            return None, self._ids(plan, self.data_sets.choose(plan.data), plan.objective), None
        return *self.trained(plan, policy), None

    def trained(self, plan: Plan, policy: Policy) -> tuple[Prepared, PrivateData]:
        """The rows of a training; `NotAligned` if it needs an alignment of its ids first."""
        name, terms = self.data_sets.choose(plan.data), plan.objective
        if isinstance(terms, Additive) and (
            fault := task_fault(terms, self.data_sets.inputs(name).positive)
        ):
            raise UsageError(fault)  # before ids are compared
        prepared = self._prepared(name, plan)
        if policy.ids_secret is None:
            return prepared, prepared.data
        return prepared, replace(
            prepared.data, ids_digest=keyed(prepared.data.ids_digest, policy.ids_secret)
        )

    def aligned(self, plan: Plan, name: str, inputs: Inputs) -> SharedIds | None:
        """The ids that this data set shares with the sites of the plan; None if they are equal by agreement."""
        if plan.align is None:
            return None
        ids = self.data_sets.ids(name, inputs, plan.align.ids)
        if (found := self._aligned.find(plan, ids, plan.align.ids)) is None:
            raise NotAligned(ids)
        if not found.ids:
            raise UsageError("no id is known to every site")
        return found

    def labelled(self, plan: Plan) -> int:
        """How many rows have a label that a training would use."""
        inputs = self.inputs(plan)
        if plan.objective.needs != "rows" or inputs.target is None:
            return 0
        with self._reading(self.data_sets.choose(plan.data)):
            table = read_table(inputs.table, Faults(), inputs.na_values, inputs.notation)
            return (
                int((~table.missing(inputs.target)).sum()) if inputs.target in table.columns else 0
            )

    def keep(self, plan: Plan, above: Plan, ids: tuple[str, ...], found: tuple[str, ...]) -> Path:
        """Keep the result of an alignment of these ids, for runs with the sites of ``above``: some can have been missing."""
        assert isinstance(plan.objective, Alignment)
        return self._aligned.put(above, ids, SharedIds(plan.objective.ids, found, plan.run))

    def _prepared(self, name: str, plan: Plan) -> Prepared:
        with self._reading(name):
            inputs = self._named(plan, name)
            prepared, fresh = self.data_sets.get(name, inputs, self.aligned(plan, name, inputs))
        if fresh:
            self.shown(name, prepared)
        return prepared

    def shown(self, name: str, prepared: Prepared) -> None:
        """Tell the operator what was read: above all, the notation that was found."""
        for text in prepared.notes:
            self._notify(notices.finding(text))
        d = prepared.data
        self._notify(notices.data_read(name, len(d.X), len(d.Z), d.X.shape[1]))

    def read_ahead(self, name: str) -> None:
        """Read a data set before a run needs it: its operator hears of a fault before it ends a run for all sites."""
        inputs = self.data_sets.inputs(name)
        if inputs.id is None or inputs.target is None:  # a study can name the columns
            for source in (inputs.table, inputs.unlabelled):
                if source is not None:
                    read_table(source, na_values=inputs.na_values, notation=inputs.notation)
            return
        try:
            self.shown(name, self.data_sets.get(name)[0])
        except BadTable as error:
            # Without shared rows a data set waits for an alignment of ids. Until a run needs them, that is no fault.
            if {fault.kind for fault in error.faults} != {UNSHARED}:
                raise

    def read_all(self) -> None:
        for name in self.data_sets.names:
            with suppress(Unusable), self._reading(name):
                self.read_ahead(name)

    def _ids(self, plan: Plan, name: str, terms: Alignment) -> IdList:
        with self._reading(name):
            ids = self.data_sets.ids(name, self._named(plan, name), terms.ids)
        if plan.run != self._shown:
            self._shown = plan.run
            self._notify(
                notices.finding(
                    f"{len(ids)} ids of this site are compared; `coreg-agent check` shows some of them"
                )
            )
            if warning := guessable(ids):
                self._notify(notices.finding(warning))
        # No instance is shared yet. The ledger compares the sites of all alignments of the same ids, by this site's own name for
        # them: counts with and without a site would name it.
        about = f"coreg alignment {plan.federation} {plan.data} {terms.ids}"
        salt = self.data_sets.salt
        return IdList(
            ids,
            hashlib.sha256(about.encode()).hexdigest(),
            salt,
            own_name(f"alignment {ids_digest(ids)}", salt),
        )

    def _batch(
        self, plan: Plan, terms: Scoring, policy: Policy, results: ModelStore
    ) -> tuple[None, Batch, Scored]:
        model = results.model_of(terms.of_run)
        if model.site != self._name:
            raise UsageError(f"the model of run {terms.of_run} belongs to another site.")
        name = self.data_sets.choose(plan.data)
        with self._reading(name):
            inputs = self._named(plan, name)
            batch, scored = batch_of(
                model, inputs, self.data_sets.salt, self.aligned(plan, name, inputs)
            )
        for note in scored.notes:
            self._notify(notices.finding(note))
        if policy.ids_secret is not None:
            batch = replace(batch, ids_digest=keyed(batch.ids_digest, policy.ids_secret))
        return None, batch, scored

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """A context that reports faults of a data set to the operator; the coordinator receives only that there is one."""
        self.troubles.pop(name, None)
        try:
            yield
        except CoregError as error:
            reason = f"{error}{owner_hint(error)}"
            self.troubles[name] = (
                f"{reason} (found {timestamp()}; it is read again at the next run)"
            )
            self._notify(notices.data_unusable(name))
            self._notify(notices.finding(reason))
            raise Unusable(_unusable(name)) from None

    def fault_behind(self, reason: str) -> str | None:
        """The fault of the data set that a refusal names, with what the coordinator must not receive."""
        return next(
            (text for name, text in self.troubles.items() if reason == _unusable(name)), None
        )


WAITS = " The run waits: correct it, and start the agent again."


def _unusable(name: str) -> str:
    named = f" {name!r}" if name else ""
    return f"its data set{named} cannot be used; its operator can read the reason."


# --- runs ---------------------------------------------------------------------------------------------------------------


@dataclass
class _Worker:
    """An accepted run; ``unsaid``: the disclosure of an unsent answer; ``stored``: the result in files ``written``."""

    site: Site
    prepared: Prepared | None
    scored: Scored | None
    target: str
    unsaid: Disclosure | None = None
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
        results: ModelStore,
        data_sets: DataSets,
        aligned: AlignedIds,
        ledger: Ledger,
        notify: Callable[[Notice], None],
    ):
        self.name, self.policy, self.keys, self.results = name, policy, keys, results
        self.ledger = ledger
        self.tables = RunTables(name, data_sets, aligned, notify)
        self.compared: Callable[[], bool] = lambda: (
            True
        )  # whether the operators compared the eight words
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
            self.results.folder_of(plan)  # the names of run and study are names of folders
            prepared, data, _ = self.tables.read(plan, self.policy, self.results)
            memory, rows = self._memory_of(data), data if isinstance(data, PrivateData) else None
            found = objections(plan, self.policy, rows, memory, data.ids_digest)
            both = 0 if prepared is None else len(prepared.labelled_and_shared)
            given = memory.recall(plan, data.ids_digest).answered
            columns = self._columns(plan)
            if rows is not None and prepared is not None:
                columns += f"; {rows.Z.shape[1]} features of {prepared.preprocessing.summary}"
            about = describe_request(plan, columns, len(data.Z), both, given)
            about |= trainings(plan, self.policy, rows, memory)
            return Judged(plan.run, refusal(found, self.policy), about=about)
        except NotAligned as error:
            return self._judged_unaligned(plan, error.ids)
        except (CoregError, Unusable) as error:
            return Judged(plan.run, **self._against(error))

    def _judged_unaligned(self, plan: Plan, ids: tuple[str, ...]) -> Judged:
        try:
            labelled = self.tables.labelled(plan)
        except Unusable as error:
            return Judged(plan.run, **self._against(error))
        found = objections(plan, self.policy, None, self.ledger.memory, "")
        columns = f"{self._columns(plan)}; the alignment finds which of {len(ids)} ids are shared"
        about = describe_request(plan, columns, len(ids), labelled, warning=guessable(ids))
        about["leaves this machine"] = f"{BEFORE}{about['leaves this machine']}"
        return Judged(plan.run, refusal(found, self.policy), about=about)

    def _against(self, error: Exception) -> dict[str, Any]:
        """The reason; the run waits for a table that can be mended, if its agent is for one run and is started again."""
        waits = isinstance(error, Unusable) and bool(self.tables.only)
        return {"reason": f"{error}{WAITS * waits}", "for_now": waits}

    def _columns(self, plan: Plan) -> str:
        inputs = self.tables.inputs(plan)
        predicts = (
            f"predicts {inputs.target!r}; "
            if plan.objective.needs == "rows" and inputs.target
            else ""
        )
        return f"{predicts}individuals by {inputs.id!r}"

    def work(self, message: RunMessage, *, listening: bool) -> tuple[list[bytes], Worked]:
        """The site's answers as frames, each recorded before it leaves. If ``listening`` is false, none is recorded."""
        if isinstance(message, Proposal) and message.plan.align is not None:
            self._align[message.run] = message.plan
        if isinstance(message, Proposal) and message.run not in self._workers:
            try:
                refused = self._begin(message.plan)
            except NotAligned:
                return self._recorded([Unaligned(message.run)], listening), Worked(
                    message, accepted=True
                )
            if refused is not None:
                return self._recorded([refused], listening), self._proposed(message, refused)
        if message.run not in self._workers:
            return self._unaligned(message, listening)
        return self._answered(message, listening=listening)

    def _unaligned(self, message: RunMessage, listening: bool) -> tuple[list[bytes], Worked]:
        """The answer in a run whose ids were not aligned: only its end can follow."""
        if not isinstance(message, Finished):
            return [], Worked(
                message,
                breach=f"sent a step of run {message.run}, before the ids of this site were aligned.",
            )
        return self._recorded([Fetched(message.run)], listening, outcome=message.outcome), Worked(
            message
        )

    def _begin(self, plan: Plan) -> PlanRefused | None:
        """Create the site of a run; if that fails, return the message with the reason."""
        try:
            self.results.folder_of(plan)  # the names of run and study are names of folders
            prepared, data, scored = self.tables.read(plan, self.policy, self.results)
            consent = Consent(self.policy, self._memory_of(data), time.monotonic)
        except (CoregError, Unusable) as error:
            return PlanRefused(plan.run, **self._against(error))
        target = "" if prepared is None else self.tables.inputs(plan).target or ""
        token = os.urandom(16).hex()
        site = Site(
            self.name,
            data,
            consent,
            self.keys,
            pin_threads=pin_threads,
            release=release(),
            token=token,
        )
        worker = _Worker(
            site, prepared, scored, target, list=data if isinstance(data, IdList) else None
        )
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
        return {
            "run": over.run,
            **over.fields,
            "models": models,
            **({"fault": fault} if fault else {}),
        }

    def _proposed(self, message: Proposal, answer: FromSite) -> Worked:
        if isinstance(answer, PlanRefused):
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
        told = site.disclosure
        if isinstance(message, Step):
            told = (
                told or worker.unsaid
            )  # an unsent answer is recorded when the coordinator repeats its step
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
        self,
        answers: Sequence[FromSite],
        listening: bool,
        told: Disclosure | None = None,
        outcome: Outcome | None = None,
    ) -> list[bytes]:
        frames: list[bytes] = []
        for answer in answers if listening else ():
            frames += frames_of(self.ledger.record(answer, told, outcome))
        return frames

    def _deliver(self, worker: _Worker, result: SiteResult) -> tuple[Path, ...]:
        self.last, self.written = result, ()
        if (
            plan := result.plan
        ) is not None and result.sites:  # otherwise the run ended before its computation did
            self.written = self._written(worker, plan, result)
        return self.written

    def _written(self, worker: _Worker, plan: Plan, result: SiteResult) -> tuple[Path, ...]:
        def note(text: str) -> None:
            self._notify(notices.finding(text))

        if worker.scored is not None:
            for finding in result.findings:
                note(finding)
            write = partial(worker.scored.write, result)
            return () if result.scores is None else self.results.save(plan, result, write)
        if plan.objective.needs == "ids":
            for sentence in findings.aligned(result):
                note(sentence)
            if result.aligned is None or worker.list is None:
                return ()
            above = aligns_for(plan.run)
            path = self.tables.keep(
                plan, self._align.get(above, plan), worker.list.ids, result.aligned.ids
            )
            self.forget(above)  # it reads its rows again
            return (path,)
        assert worker.prepared is not None
        store, compared = self.results, self.compared()
        return store.put_models(
            plan, result, worker.prepared, worker.target, note, compared=compared
        )
