"""The tables that a run needs, and their faults: the operator hears them, the coordinator does not.

Every method blocks: the daemon calls them in threads.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from coreg_core.arrays import Arr
from coreg_core.errors import CoregError, Refused, UsageError
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.alignment import Alignment, IdRule
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Notice
from coreg_core.plan import Plan, is_on_demand
from coreg_wire.clock import timestamp
from coreg_wire.terminal.command_line import owner_hint
from site_agent.consent.policy import Policy
from site_agent.data.aligned_ids import AlignedIds, SharedIds, guessable
from site_agent.data.data_sets import DataSets
from site_agent.data.databases import one_snapshot
from site_agent.data.ids import ids_digest, keyed, own_name
from site_agent.data.inputs import Inputs
from site_agent.data.open_columns import left_open
from site_agent.data.prepare import Prepared
from site_agent.data.site_tables import WAITING
from site_agent.data.sources import BadTable, Faults
from site_agent.data.suspects import suspects
from site_agent.data.tables import read_table
from site_agent.machine import notices
from site_agent.machine.alignment import IdList
from site_agent.machine.scoring import Batch
from site_agent.models.batch import Alone, Scored, batch_of
from site_agent.models.store import ModelStore
from site_agent.service.on_demand import Known, OnDemand
from site_agent.site_data import PrivateData

Private: TypeAlias = PrivateData | Batch | IdList


class Unusable(Exception):
    """A data set cannot be used. The cause can name rows, so the coordinator does not receive
    it.
    """


class NotAligned(Exception):
    """No alignment of these own ids with the sites of the plan is known."""

    def __init__(self, ids: tuple[str, ...]):
        super().__init__()
        self.ids = ids


@dataclass(frozen=True, eq=False)
class RunData:
    """What a run computes with, and what its result is written with."""

    private: Private
    prepared: Prepared | None = None  # of a training
    scored: Scored | None = None  # of a scoring


@dataclass(eq=False)
class RunTables:
    """See the module's docstring."""

    results: ModelStore
    policy: Policy
    data_sets: DataSets
    alignments: AlignedIds
    notify: Callable[[Notice], None]
    troubles: dict[str, str] = field(default_factory=dict)  # data sets that cannot be used, and why
    on_demand: OnDemand | None = None  # of an agent that serves
    only: str = ""  # "training" or "scoring" of an agent of one run
    _shown: str = ""  # the run whose ids the operator has seen

    # --- the data of a run ----------------------------------------------------------------------

    def inputs(self, plan: Plan) -> Inputs:
        return self._named(plan, self.data_sets.choose(plan.data))

    def target(self, plan: Plan) -> str:
        """What the plan predicts: a site without labels need not name it, and the study can."""
        return self.inputs(plan).target or plan.target

    def _named(self, plan: Plan, name: str) -> Inputs:
        trains = plan.objective.needs == "rows"
        return self.data_sets.named(name, plan.target, plan.id, trains=trains)

    def read(self, plan: Plan) -> RunData:
        """The current data for the run.

        The coordinator can receive a `CoregError`, and never the cause of `Unusable`.
        """
        if plan.objective.needs == "ids":
            return RunData(self._ids(plan, self.data_sets.choose(plan.data)))
        kind = "scoring" if plan.objective.needs == "batch" else "training"
        if self.only not in ("", kind):
            raise UsageError(
                f"this agent was started for {self.only}: `coreg-agent --data …` trains, and "
                "`coreg-agent score` scores."
            )
        if kind == "scoring":
            return self._batch(plan)
        prepared, private = self.trained(plan)
        return RunData(private, prepared=prepared)

    def trained(self, plan: Plan) -> tuple[Prepared, PrivateData]:
        """The rows of a training; `NotAligned` if it needs an alignment of its ids first."""
        name = self.data_sets.choose(plan.data)
        # Before ids are compared.
        if fault := plan.objective.target_fault(self.data_sets.inputs(name).positive):
            raise UsageError(fault)
        prepared = self._prepared(name, plan)
        data = prepared.data
        return prepared, replace(data, ids_digest=self._of_ids(data.ids_digest))

    def aligned(self, plan: Plan, name: str, inputs: Inputs) -> SharedIds | None:
        """The ids shared with the plan's sites; None if they are equal by agreement."""
        if plan.align is None:
            return None
        ids = self.data_sets.ids(name, inputs, plan.align.ids)
        shared = self.alignments.find(plan, ids, plan.align.ids)
        if shared is None and is_on_demand(plan.run):
            raise UsageError(
                f"its ids are not those that were aligned. Submit study {plan.study} again."
            )
        if shared is None:
            raise NotAligned(ids)
        if not shared.ids:
            raise UsageError("no id is known to every site")
        return shared

    def before_alignment(self, plan: Plan) -> tuple[int, list[str]]:
        """How many rows have a label that a training would use, and the columns that it uses."""
        inputs = self.inputs(plan)
        if plan.objective.needs != "rows":
            return 0, []
        with self._reading(self.data_sets.choose(plan.data)):
            table = read_table(inputs.table, Faults(), inputs.na_values, inputs.notation)
        apart = {inputs.id, inputs.target, *inputs.drop}
        columns = [name for name in table.columns if name not in apart]
        if inputs.target is None or inputs.target not in table.columns:
            return 0, columns
        return int((~table.missing(inputs.target)).sum()), columns

    def keep(self, plan: Plan, above: Plan, own: tuple[str, ...], shared: tuple[str, ...]) -> Path:
        """Keep the result of an alignment of the own ids, for runs with the sites of ``above``."""
        terms = plan.objective
        assert isinstance(terms, Alignment)
        return self.alignments.put(above, own, SharedIds(terms.ids, shared, plan.run))

    def _prepared(self, name: str, plan: Plan) -> Prepared:
        with self._reading(name):
            inputs = self._named(plan, name)
            aligned = self.aligned(plan, name, inputs)
            terms = plan.objective
            classes = terms.classes if isinstance(terms, Additive) else ()
            prepared, fresh = self.data_sets.get(name, inputs, aligned, classes)
        if fresh:
            self.show(name, prepared)
            if isinstance(terms, Additive) and terms.task == "regression":
                self._doubt_task(prepared.data.y)
        return prepared

    def _doubt_task(self, y: Arr) -> None:
        if len(y) and np.isin(y, (0.0, 1.0)).all():
            text = (
                'WARNING: every label is 0 or 1, and the study has not task = "classification": it'
                " gives no probabilities, and no label privacy."
            )
            self.notify(notices.finding(text))

    def show(self, name: str, prepared: Prepared) -> None:
        """Tell the operator what was read: above all, the notation that was found."""
        for text in prepared.notes:
            self.notify(notices.finding(text))
        for text in suspects(prepared.table, prepared.preprocessing, prepared.data.target):
            self.notify(notices.finding(f"WARNING: {text}"))
        d = prepared.data
        self.notify(notices.data_read(name, len(d.X), len(d.Z), d.X.shape[1]))

    def _ids(self, plan: Plan, name: str) -> IdList:
        terms = plan.objective
        assert isinstance(terms, Alignment)
        with self._reading(name):
            ids = self.data_sets.ids(name, self._named(plan, name), terms.ids)
        if plan.run != self._shown:
            self._shown = plan.run
            text = (
                f"{len(ids)} ids of this site are compared; `coreg-agent check` shows some of them"
            )
            for finding in filter(None, (text, guessable(ids))):
                self.notify(notices.finding(finding))
        # No instance is shared yet. The ledger compares the sites of all alignments of the same
        # ids, by this site's own name for them: counts with and without a site would name it.
        about = f"coreg alignment {plan.federation} {plan.data} {terms.ids}"
        salt = self.data_sets.salt
        instances = own_name(f"alignment {ids_digest(ids)}", salt)
        return IdList(ids, hashlib.sha256(about.encode()).hexdigest(), salt, instances)

    def _batch(self, plan: Plan) -> RunData:
        (batch, scored, _), fresh = self.individuals(plan)
        for note in scored.notes if fresh else ():
            self.notify(notices.finding(note))
        wanted: tuple[int, ...] = ()
        if self.on_demand is not None and is_on_demand(plan.run):
            wanted = self.on_demand.wanted(plan, batch.ids)
        digest = self._of_ids(batch.ids_digest)
        return RunData(replace(batch, ids_digest=digest, wanted=wanted), scored=scored)

    def individuals(self, plan: Plan) -> tuple[Known, bool]:
        """Those of a scoring, and whether they were read again."""
        terms = plan.objective
        assert isinstance(terms, Scoring)
        model = self.results.model_of(terms.of_run)
        if model.site != self.results.site:
            raise UsageError(f"the model of run {terms.of_run} belongs to another site.")
        name = self.data_sets.choose(plan.data)
        with self._reading(name):
            inputs = self._named(plan, name)
            aligned = self.aligned(plan, name, inputs)

            def make() -> Known:
                batch, scored = batch_of(model, inputs, self.data_sets.salt, aligned)
                rule: IdRule = "exact" if aligned is None else aligned.rule
                return batch, scored, Alone.of(model, inputs, rule)

            asked = inputs, aligned, model.run, model.name
            return self.data_sets.cached((name, "batch"), inputs, asked, make)

    def known(self, plan: Plan) -> Known:
        """Those of a scoring, for a request of this site's own program."""
        try:
            return self.individuals(plan)[0]
        except Unusable:
            raise Refused(self.troubles[self.data_sets.choose(plan.data)]) from None
        except NotAligned:
            raise Refused(
                "the ids of this site's table changed, so they have to be aligned again: ask the"
                f" coordinator's operator to submit study {plan.study} again."
            ) from None

    def _of_ids(self, digest: str) -> str:
        """The digest that leaves: keyed, if the sites have a secret."""
        secret = self.policy.ids_secret
        if secret is None:
            return digest
        return keyed(digest, secret)

    # --- before a run ---------------------------------------------------------------------------

    def read_ahead(self, name: str) -> None:
        """Read a data set before a run needs it.

        Its operator hears of a fault before it ends a run for all sites.
        """
        inputs = self.data_sets.inputs(name)
        if inputs.id is None or inputs.target is None:  # a study can name the columns
            self.report_open(name)
            if inputs.unlabelled is not None:
                read_table(inputs.unlabelled, None, inputs.na_values, inputs.notation)
            return
        try:
            self.show(name, self.data_sets.get(name)[0])
        except BadTable as error:
            # Without shared rows a data set waits for an alignment of ids, and texts as a target
            # for the study's classes. Until a run needs them, that is no fault.
            if not {fault.kind for fault in error.faults} <= WAITING:
                raise

    def report_open(self, name: str, *, trains: bool = True) -> None:
        """Tell the operator which columns are not known here, before the run that needs them."""
        columns = left_open(self.data_sets.inputs(name), trains=trains)
        if columns is not None:
            self.notify(notices.columns_open(name))
            for fault in columns.faults:
                self.notify(notices.finding(fault.text))

    def read_all(self) -> None:
        for name in self.data_sets.names:
            with suppress(Unusable), self._reading(name):
                self.read_ahead(name)

    # --- faults ---------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Report faults of a data set to the operator; the coordinator receives that there is
        one.
        """
        self.troubles.pop(name, None)
        try:
            with one_snapshot():
                yield
        except CoregError as error:
            reason = f"{error}{owner_hint(error)}"
            when = f"(found {timestamp()}; it is read again at the next run)"
            self.troubles[name] = f"{reason} {when}"
            self.notify(notices.data_unusable(name))
            self.notify(notices.finding(reason))
            raise Unusable(_unusable(name)) from None

    def fault_behind(self, reason: str) -> str | None:
        """The fault of the data set that a refusal names, which the coordinator must not
        receive.
        """
        return {_unusable(name): text for name, text in self.troubles.items()}.get(reason)


def _unusable(name: str) -> str:
    named = f" {name!r}" if name else ""
    return f"its data set{named} cannot be used; its operator can read the reason."
