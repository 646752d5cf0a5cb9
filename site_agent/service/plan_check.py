"""What this site would say to a plan, before the coordinator sends it.

The judgement is the one that the agent makes itself (`site_agent.consent`), on the same tables and
the same ledger. Without rows, or before the ids are aligned, only the terms of the plan are judged.
"""

import os
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from coreg_core.errors import BadData
from coreg_core.plan import Plan
from site_agent.config.settings import AgentSettings
from site_agent.consent.memory import Memory
from site_agent.consent.objection import Objection
from site_agent.consent.objections import before_offer, trainings
from site_agent.consent.participant import Consent, Means, Participant
from site_agent.consent.policy import Policy, read_policy
from site_agent.consent.request import BEFORE
from site_agent.data.aligned_ids import AlignedIds, read_ids
from site_agent.data.data_sets import DataSets
from site_agent.data.open_columns import named
from site_agent.data.prepare import Prepared
from site_agent.identity.identity import check_identity
from site_agent.ledger.ledger import remember
from site_agent.service.run_tables import NotAligned, RunTables, Unusable
from site_agent.site_data import PrivateData

# A line for the operator: its text, whether the check passed, and its fields.
Note: TypeAlias = Callable[[str, bool | None, Mapping[str, Any]], None]

FIELDS: Mapping[str, Any] = {"check": "plan"}


@dataclass(frozen=True, eq=False)
class Tables:
    """The data sets that earlier checks have read, and the secret that names their instances."""

    salt: bytes
    prepared: Mapping[str, Prepared]
    untrained: Set[str]  # data sets without a target


@dataclass(frozen=True, eq=False)
class _Rows:
    """What a training would compute with, as far as it is known before the run."""

    data: PrivateData | None
    shared: int
    both: int  # labelled and shared
    aligned: bool = True  # if false, ``shared`` and ``both`` are upper bounds


@dataclass(frozen=True)
class _Judgement:
    """The objections to a plan; without one, what the operator reads about it."""

    objections: list[Objection]
    allows: str = "the policy allows it"
    so_far: str = ""  # answers and trainings
    spent: bool = False  # the openings of its labelled rows


@dataclass(frozen=True, eq=False)
class _PlanCheck:
    """A plan at this site: its terms on one side, policy, ledger and tables on the other."""

    plan: Plan
    settings: AgentSettings
    name: str
    policy: Policy
    memory: Memory
    tables: Tables
    data_sets: DataSets
    data_set: str
    note: Note

    def judge(self) -> _Judgement:
        """(1) a plan without rows here, (2) rows that could not be read, (3) a training."""
        plan = self.plan
        untrained = self.data_set in self.tables.untrained
        # (1)
        if plan.objective.needs != "rows" or (untrained and not plan.target):
            return _Judgement(self._objections_without_rows())
        # (2)
        if plan.align is None and not untrained and self.data_set not in self.tables.prepared:
            raise BadData("not checked: its table has no shared rows, or could not be read.")
        # (3)
        rows = self._rows()
        self._note_leaving(rows.shared, rows.both, "" if rows.aligned else BEFORE)
        return self._judge_training(rows)

    def _objections_without_rows(self) -> list[Objection]:
        needs = self.plan.objective.needs
        objections = self._before_offer()
        if needs == "batch" and self.data_set in self.settings.data:
            inputs = named(self.settings.data[self.data_set], trains=False)
            self._note_leaving(len(read_ids(inputs, "exact")), 0)
        if needs == "rows":
            text = "its data set has no target here, so this site cannot train"
            objections.append(Objection(text))
        return objections

    def _before_offer(self) -> list[Objection]:
        return before_offer(self.plan, self.name, self.policy, self.memory)

    def _rows(self) -> _Rows:
        """The rows as they were checked, or as the plan's columns and its alignment select them."""
        plan = self.plan
        checked = self.tables.prepared.get(self.data_set)
        aligned = AlignedIds(self.settings.identity / "aligned")
        tables = RunTables(self.name, self.data_sets, aligned, lambda _: None)
        try:
            if checked is not None and plan.align is None:
                return _Rows(checked.data, len(checked.data.Z), len(checked.labelled_and_shared))
            try:
                prepared, data = tables.trained(plan, self.policy)
            except NotAligned as error:
                known = None if checked is None else checked.data
                return _Rows(known, len(error.ids), tables.labelled(plan), aligned=False)
            return _Rows(data, len(prepared.data.Z), len(prepared.labelled_and_shared))
        except Unusable:
            raise BadData("; ".join(tables.troubles.values())) from None

    def _judge_training(self, rows: _Rows) -> _Judgement:
        plan = self.plan
        data = rows.data
        memory = self.memory
        allows = "this site would take part in it"
        if data is None:
            openings = trainings(plan, self.policy, None, memory)
            return _Judgement(self._before_offer(), allows, "; ".join(["", *openings.values()]))
        memory.know_as(data.ids_digest, data.instances)
        given = memory.recall(plan, data.ids_digest).answered
        so_far = f"; {given} of at most {plan.most_answers} answers are given"
        openings = trainings(plan, self.policy, data if rows.aligned else None, memory)
        for text in openings.values():
            so_far += f"; {text}"
        spent = bool(openings) and memory.trainings(data) >= self.policy.openings
        consent = Consent(self.policy, memory, time.monotonic)
        means = Means(None, lambda threads: threads, os.urandom)
        participant = Participant(self.name, data, consent, means)
        return _Judgement(participant.objections(plan), allows, so_far, spent)

    def _note_leaving(self, shared: int, both: int, before: str = "") -> None:
        terms = self.plan.objective
        leaves = f"{before}leaves this machine: {terms.leaves(shared)}"
        can = f"members can compute: {terms.computable(self.plan, both)}"
        self.note(f"plan: {leaves}; {can}", True, FIELDS)


def check_plan(plan: Plan, settings: AgentSettings, tables: Tables, note: Note) -> bool:
    """Whether this site would take part, with one line for each reason against the plan."""
    name = check_identity(settings.identity).name
    policy = read_policy(settings.policy)
    memory = Memory()
    remember(settings.ledger_path, memory)
    data_sets = DataSets(settings.data, tables.salt)
    data_set = data_sets.choose(plan.data)
    check = _PlanCheck(
        plan,
        settings,
        name=name,
        policy=policy,
        memory=memory,
        tables=tables,
        data_sets=data_sets,
        data_set=data_set,
        note=note,
    )
    judgement = check.judge()
    for objection in judgement.objections:
        text = f"plan: {objection.reason.removesuffix('.')}"
        if objection.here:
            text += f" ({objection.here})"
        if objection.allow:
            text += f". To allow it: {objection.allow}"
        note(text, False, {**FIELDS, "allow": objection.allow})
    if judgement.objections:
        return False
    allows = "the policy allows it" if judgement.spent else judgement.allows
    fields = {**FIELDS, "warning": judgement.spent}
    note(f"plan: {allows}{judgement.so_far}", True, fields)
    return True
