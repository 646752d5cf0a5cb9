"""What this site would say to a plan, before the coordinator sends it.

The judgement is the one that the agent makes itself (`site_agent.consent.consent`), on the same
tables and the same ledger. Without rows, or before the ids are aligned, only the terms of the plan
are judged.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coreg_core.errors import BadData, CoregError
from coreg_core.plan import Plan
from coreg_wire.clock import today
from site_agent.config.settings import AgentSettings
from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.consent.objection import Objection
from site_agent.consent.policy import read_policy
from site_agent.consent.request import BEFORE
from site_agent.data.aligned_ids import AlignedIds, read_ids
from site_agent.data.data_sets import DataSets
from site_agent.data.open_columns import named
from site_agent.data.prepare import Prepared
from site_agent.identity.identity import Identity, check_identity
from site_agent.ledger.ledger import remember
from site_agent.machine.computations import computation_of
from site_agent.models.store import ModelStore
from site_agent.service.run_tables import NotAligned, RunTables, Unusable
from site_agent.site_data import PrivateData


@dataclass(frozen=True)
class CheckLine:
    """A line of a check for the operator.

    ``good``: whether it passed. ``warning``: None where it is not said. ``allow``: the line of
    policy.toml that would allow what was refused. ``alone``: without the title of its check.
    """

    text: str
    good: bool = True
    warning: bool | None = None
    allow: str | None = None
    alone: bool = False

    def fields(self, title: str) -> dict[str, Any]:
        """What --json shows beside the text."""
        about = {
            "check": title.partition(" ")[0] if self.alone else title,
            "warning": self.warning,
            "allow": self.allow,
        }
        return {key: value for key, value in about.items() if value is not None}


@dataclass(eq=False)
class CheckedSite:
    """A site as far as it is known: what one check has read, later ones use."""

    settings: AgentSettings
    plan_file: Path | None
    files: tuple[Path, ...]
    columns: dict[str, tuple[str, str]]  # target and id that the plan names, by data set
    # The ledger names instances under this secret. Without one there are no earlier answers.
    salt: bytes = b""
    prepared: dict[str, Prepared] = field(default_factory=dict)
    untrained: set[str] = field(default_factory=set)  # data sets without a target
    identity: Identity | None = None


@dataclass(frozen=True, eq=False)
class _Rows:
    """What a training would compute with, as far as it is known before the run."""

    data: PrivateData | None
    shared: int
    both: int  # labelled and shared
    aligned: bool = True  # if false, ``shared`` and ``both`` are upper bounds


def check_plan(plan: Plan, site: CheckedSite) -> Iterator[CheckLine]:
    """What leaves this machine, and then each reason against the plan, or that there is none."""
    settings = site.settings
    data_sets = DataSets(settings.data, site.salt)
    data_set = data_sets.choose(plan.data)
    name = check_identity(settings.identity).name
    policy = read_policy(settings.policy)
    consent = Consent(policy, Memory(), time.monotonic, today)
    remember(settings.ledger_path, consent.memory)
    untrained = data_set in site.untrained
    needs = plan.objective.needs
    # (1) a plan without rows here
    if needs != "rows" or (untrained and not plan.target):
        objections = consent.objections(plan, name)
        if needs == "batch" and data_set in settings.data:
            inputs = named(settings.data[data_set], trains=False)
            yield _leaving(plan, len(read_ids(inputs, "exact")), 0)
        if needs == "rows":
            text = "its data set has no target here, so this site cannot train"
            objections.append(Objection(text))
        yield from _verdict(objections, "the policy allows it")
        return
    # (2) rows that could not be read
    checked = site.prepared.get(data_set)
    if plan.align is None and not untrained and checked is None:
        raise BadData("not checked: its table has no shared rows, or could not be read.")
    # (3) a training
    aligned = AlignedIds(settings.identity / "aligned")
    store = ModelStore(name, settings.models)
    tables = RunTables(store, consent.limits, data_sets, aligned, lambda _: None)
    rows = _rows(plan, tables, checked)
    yield _leaving(plan, rows.shared, rows.both, "" if rows.aligned else BEFORE)
    yield from _training(plan, name, consent, rows)


def _rows(plan: Plan, tables: RunTables, checked: Prepared | None) -> _Rows:
    """The rows as they were checked, or as the plan's columns and its alignment select them."""
    prepared = checked
    try:
        try:
            if prepared is None or plan.align is not None:
                prepared, _ = tables.trained(plan)
        except NotAligned as error:
            data = None if checked is None else checked.data
            labelled, _ = tables.before_alignment(plan)
            return _Rows(data, len(error.ids), labelled, aligned=False)
    except Unusable:
        raise BadData("; ".join(tables.troubles.values())) from None
    return _Rows(prepared.data, len(prepared.data.Z), len(prepared.labelled_and_shared))


def _training(plan: Plan, name: str, consent: Consent, rows: _Rows) -> Iterator[CheckLine]:
    data = rows.data
    memory = consent.memory
    openings = consent.trainings(plan, data if rows.aligned else None)
    spent = bool(openings) and memory.trainings(data) >= consent.limits.openings
    lost = rows.aligned and consent.rows_to_change(plan, data) > 0
    allows = "this site would take part in it"
    if data is None:
        text = "; ".join([allows, *openings.values()])
        yield from _verdict(consent.objections(plan, name), text, warning=spent)
        return
    memory.know_as(data.ids_digest, data.instances)
    objections = consent.objections(plan, name, data, data.ids_digest)
    try:  # what only its data show
        computation_of(plan, name, data, lambda threads: threads, os.urandom)
    except CoregError as error:
        objections.append(Objection(str(error), here=getattr(error, "here", "")))
    given = memory.answered(plan, data.ids_digest)
    so_far = f"{given} of at most {plan.most_answers} answers are given"
    allows = "the policy allows it" if spent or lost else allows
    text = "; ".join([allows, so_far, *openings.values()])
    yield from _verdict(objections, text, warning=spent or lost)


def _leaving(plan: Plan, shared: int, both: int, before: str = "") -> CheckLine:
    terms = plan.objective
    leaves = f"{before}leaves this machine: {terms.leaves(shared)}"
    return CheckLine(f"{leaves}; members can compute: {terms.computable(plan, both)}")


def _verdict(
    objections: list[Objection], allows: str, *, warning: bool = False
) -> Iterator[CheckLine]:
    for objection in objections:
        text = objection.reason.removesuffix(".")
        if objection.here:
            text += f" ({objection.here})"
        if objection.allow:
            text += f". To allow it: {objection.allow}"
        yield CheckLine(text, good=False, allow=objection.allow)
    if not objections:
        yield CheckLine(allows, warning=warning)
