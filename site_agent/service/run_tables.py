"""The tables of a serving agent's runs: what a run reads, and what its operator hears of a fault.

Every method blocks: workers call them in threads.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

from coreg_core.errors import CoregError, UsageError
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.protocol.outcomes import Notice
from coreg_core.protocol.plan import Plan
from coreg_wire.clock import timestamp
from coreg_wire.terminal.command_line import owner_hint
from site_agent.consent.policy import Policy
from site_agent.data.errors import BadTable
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import DataSets, Prepared
from site_agent.data.shared_set import UNSHARED, guessable, keyed, read_ids
from site_agent.machine import notices
from site_agent.machine.alignment import IdList
from site_agent.machine.scoring import Batch
from site_agent.models.batch import Scored, batch_of
from site_agent.models.output import Results
from site_agent.site_data import PrivateData


class Unusable(Exception):
    """A data set cannot be used. The cause can name rows, so the coordinator does not receive it."""


class RunTables:
    """See the module's docstring.

    Parameters
    ----------
    name
        of the site.
    data_sets
        by their names in plans.
    notify
        receives notices, from any thread.
    """

    def __init__(self, name: str, data_sets: DataSets, notify: Callable[[Notice], None]):
        self.data_sets = data_sets
        self.troubles: dict[str, str] = {}  # data sets that cannot be used, and why
        self._name, self._notify = name, notify
        self._shown = ""  # the run whose ids the operator has seen

    def inputs(self, plan: Plan) -> Inputs:
        """How to read the plan's data set."""
        return self.data_sets.inputs(self.data_sets.choose(plan.data))

    def read(
        self, plan: Plan, policy: Policy, results: Results
    ) -> tuple[Prepared | None, PrivateData | Batch | IdList, Scored | None]:
        """The current data for the run.

        Raises
        ------
        UsageError, CoregError
            no such data set, or no model to score with; the coordinator can receive the reason.
        Unusable
            a data set has a fault.
        """
        if isinstance(plan.objective, Scoring):
            return self._batch(plan, plan.objective, policy, results)
        if isinstance(plan.objective, Alignment):
            return None, self._ids(plan, plan.objective, results), None
        prepared = self._prepared(self.data_sets.choose(plan.data))
        data = prepared.data
        if policy.ids_secret is not None:
            data = replace(data, ids_digest=keyed(data.ids_digest, policy.ids_secret))
        return prepared, data, None

    def _prepared(self, name: str, *, ahead: bool = False) -> Prepared:
        with self._reading(name, ahead=ahead):
            prepared, fresh = self.data_sets.get(name)
        if fresh:
            for text in prepared.notes:  # above all, the notation that was found
                self._notify(notices.finding(text))
            d = prepared.data
            self._notify(notices.data_read(name, len(d.X), len(d.Z), d.X.shape[1]))
        return prepared

    def read_ahead(self, listed: Mapping[str, Inputs]) -> None:
        """Read these data sets before a run needs them: the operator hears of a fault before it ends a run for all sites."""
        for name, inputs in listed.items():
            with suppress(Unusable, KeyError):  # KeyError: a later reload has removed it
                if inputs.target is not None:
                    self._prepared(name, ahead=True)
                    continue
                with self._reading(name):
                    read_ids(inputs, "exact")

    def _ids(self, plan: Plan, terms: Alignment, results: Results) -> IdList:
        if not results.aligns:
            raise UsageError(
                "this agent takes part in one run. Ids are aligned by a serving agent (coreg-agent serve)."
            )
        name = self.data_sets.choose(plan.data)
        with self._reading(name):
            ids = read_ids(self.data_sets.inputs(name), terms.ids)
        if plan.run != self._shown:
            self._shown = plan.run
            self._notify(
                notices.finding(f"{len(ids)} ids of this site are compared; `coreg-agent check` shows some of them")
            )
            if warning := guessable(ids):
                self._notify(notices.finding(warning))
        # No instance is shared yet. The digest is that of all alignments of this data set, so that the ledger compares their
        # sites: counts with and without a site would name it.
        about = f"coreg alignment {plan.federation} {plan.data} {terms.ids}"
        return IdList(ids, hashlib.sha256(about.encode()).hexdigest(), self.data_sets.salt)

    def _batch(self, plan: Plan, terms: Scoring, policy: Policy, results: Results) -> tuple[None, Batch, Scored]:
        model = results.model_of(terms.of_run)
        if model.site != self._name:
            raise UsageError(f"the model of run {terms.of_run} belongs to another site.")
        names = [self.data_sets.choose(name) for name in terms.batches or (plan.data,)]
        with self._reading(", ".join(names)):
            batch, scored = batch_of(model, {n: self.data_sets.inputs(n) for n in names}, self.data_sets.salt)
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
