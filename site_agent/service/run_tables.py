"""The tables of a serving agent's runs: what a run reads, and what its operator hears of a fault.

Every method blocks: workers call them in threads.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from coreg_core.errors import CoregError, UsageError
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.protocol.outcomes import Notice
from coreg_core.protocol.plan import Plan
from coreg_wire.clock import timestamp
from coreg_wire.terminal.command_line import owner_hint
from site_agent.consent.policy import Policy
from site_agent.data.errors import BadTable, Faults
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import DataSets, Prepared
from site_agent.data.shared_set import UNSHARED, AlignedIds, SharedIds, guessable, ids_digest, keyed, own_name, read_ids
from site_agent.data.tables import read_table
from site_agent.machine import notices
from site_agent.machine.alignment import IdList
from site_agent.machine.scoring import Batch
from site_agent.models.batch import Scored, batch_of
from site_agent.models.store import Results
from site_agent.site_data import PrivateData


class Unusable(Exception):
    """A data set cannot be used. The cause can name rows, so the coordinator does not receive it."""


class NotAligned(Exception):
    """No alignment of these own ids with the sites of the plan is known; how many of the rows have a label."""

    def __init__(self, ids: tuple[str, ...], labelled: int):
        super().__init__()
        self.ids, self.labelled = ids, labelled


class RunTables:
    """See the module's docstring."""

    def __init__(self, name: str, data_sets: DataSets, aligned: AlignedIds, notify: Callable[[Notice], None]):
        self.data_sets, self._aligned = data_sets, aligned
        self.troubles: dict[str, str] = {}  # data sets that cannot be used, and why
        self._name, self._notify = name, notify
        self._shown = ""  # the run whose ids the operator has seen

    def inputs(self, plan: Plan) -> Inputs:
        return self._named(plan, self.data_sets.choose(plan.data))

    def _named(self, plan: Plan, name: str) -> Inputs:
        return self.data_sets.named(name, plan.target, plan.id, trains=plan.objective.needs == "rows")

    def read(
        self, plan: Plan, policy: Policy, results: Results
    ) -> tuple[Prepared | None, PrivateData | Batch | IdList, Scored | None]:
        """The current data for the run. The coordinator can receive a `CoregError`, and never the cause of `Unusable`."""
        if isinstance(plan.objective, Scoring):
            return self._batch(plan, plan.objective, policy, results)
        name = self.data_sets.choose(plan.data)
        if isinstance(plan.objective, Alignment):
            return None, self._ids(plan, name, plan.objective), None
        if not results.trains:
            raise UsageError("this agent was started for scoring. `coreg-agent --data …` trains.")
        prepared = self._prepared(name, plan)
        data = prepared.data
        if policy.ids_secret is not None:
            data = replace(data, ids_digest=keyed(data.ids_digest, policy.ids_secret))
        return prepared, data, None

    def aligned(self, plan: Plan, name: str, inputs: Inputs) -> SharedIds | None:
        """The ids that this data set shares with the sites of the plan; None if they are equal by agreement."""
        if plan.align is None:
            return None
        ids = self.data_sets.ids(name, inputs, plan.align.ids)
        if (found := self._aligned.find(plan, ids, plan.align.ids)) is None:
            labelled = 0
            if plan.objective.needs == "rows" and inputs.target is not None:
                table = read_table(inputs.table, Faults(), inputs.na_values, inputs.notation)
                labelled = int((~table.missing(inputs.target)).sum()) if inputs.target in table.columns else 0
            raise NotAligned(ids, labelled)
        if not found.ids:
            raise UsageError("no id is known to every site")
        return found

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

    def read_ahead(self, listed: Mapping[str, Inputs]) -> None:
        """Read these data sets before a run needs them: the operator hears of a fault before it ends a run for all sites."""
        for name in listed:
            with (
                suppress(Unusable, KeyError),
                self._reading(name, ahead=True),
            ):  # KeyError: a later reload has removed it
                inputs = self.data_sets.named(name)
                if inputs.target is None:
                    read_ids(inputs, "exact")
                else:
                    self.shown(name, self.data_sets.get(name, inputs)[0])

    def _ids(self, plan: Plan, name: str, terms: Alignment) -> IdList:
        with self._reading(name):
            ids = self.data_sets.ids(name, self._named(plan, name), terms.ids)
        if plan.run != self._shown:
            self._shown = plan.run
            self._notify(
                notices.finding(f"{len(ids)} ids of this site are compared; `coreg-agent check` shows some of them")
            )
            if warning := guessable(ids):
                self._notify(notices.finding(warning))
        # No instance is shared yet. The ledger compares the sites of all alignments of the same ids, by this site's own name for
        # them: counts with and without a site would name it.
        about = f"coreg alignment {plan.federation} {plan.data} {terms.ids}"
        salt = self.data_sets.salt
        return IdList(
            ids, hashlib.sha256(about.encode()).hexdigest(), salt, own_name(f"alignment {ids_digest(ids)}", salt)
        )

    def _batch(self, plan: Plan, terms: Scoring, policy: Policy, results: Results) -> tuple[None, Batch, Scored]:
        model = results.model_of(terms.of_run)
        if model.site != self._name:
            raise UsageError(f"the model of run {terms.of_run} belongs to another site.")
        names = [self.data_sets.choose(name) for name in terms.batches or (plan.data,)]
        with self._reading(", ".join(names)):
            tables = {name: self._named(plan, name) for name in names}
            aligned = self.aligned(plan, names[0], tables[names[0]])
            batch, scored = batch_of(model, tables, self.data_sets.salt, aligned)
        for note in scored.notes:
            self._notify(notices.finding(note))
        if policy.ids_secret is not None:
            batch = replace(batch, ids_digest=keyed(batch.ids_digest, policy.ids_secret))
        return None, batch, scored

    @contextmanager
    def _reading(self, name: str, *, ahead: bool = False) -> Iterator[None]:
        """A context that reports faults of a data set to the operator; the coordinator receives only that there is one."""
        self.troubles.pop(name, None)
        try:
            yield
        except CoregError as error:
            # Without shared rows a data set waits for an alignment of ids. Until a run needs them, that is no fault.
            waits = ahead and isinstance(error, BadTable) and {fault.kind for fault in error.faults} == {UNSHARED}
            if not waits:
                found = f"found {timestamp()}; it is read again at the next run, and after a reload"
                self.troubles[name] = f"{error}{owner_hint(error)} ({found})"
                self._notify(notices.data_unusable(name))
            raise Unusable(_unusable(name)) from None

    def fault_behind(self, reason: str) -> str | None:
        """The fault of the data set that a refusal names, with what the coordinator must not receive."""
        return next((text for name, text in self.troubles.items() if reason == _unusable(name)), None)


def _unusable(name: str) -> str:
    named = f" {name!r}" if name else ""
    return f"its data set{named} cannot be used; its operator has the reason (`coreg-agent status`, or `runs`)."
