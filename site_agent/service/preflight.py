"""Checks before a site joins, each with its verdict.

`BEFORE_TABLES` and `AFTER_TABLES` list them in the order of joining. A check yields lines for the
operator. It raises an error where joining would fail, and later checks still run. A plan is judged
as the agent itself judges it (`plan_check`).
"""

import asyncio
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from coreg_core.errors import CoregError, Refused
from coreg_wire.files.toml_file import read_plan
from coreg_wire.terminal.command_line import human_bytes, owner_hint
from coreg_wire.transport.service import host_port, release
from site_agent.config.settings import AgentSettings
from site_agent.consent.policy import changed_keys, read_policy
from site_agent.data.aligned_ids import guessable, read_ids
from site_agent.data.data_sets import DataSets
from site_agent.data.databases import one_snapshot
from site_agent.data.inputs import Inputs
from site_agent.data.open_columns import left_open, named
from site_agent.data.prepare import Prepared, prepare
from site_agent.data.salt import site_salt
from site_agent.data.site_tables import WAITING
from site_agent.data.sources import BadTable, Faults, some
from site_agent.data.suspects import suspects
from site_agent.identity.identity import check_identity
from site_agent.ledger.ledger import read_lines, require_ledger
from site_agent.models.store import ModelStore
from site_agent.service import file_modes
from site_agent.service.plan_check import CheckedSite, CheckLine, check_plan
from site_agent.session.stream import check_connection

# A line for the operator: its text, whether the check passed, and its fields.
Note: TypeAlias = Callable[[str, bool | None, Mapping[str, Any]], None]


def _columns(settings: AgentSettings, plan_file: Path | None) -> dict[str, tuple[str, str]]:
    """The target and the id that the plan names, by the data set that it chooses here."""
    if plan_file is None:
        return {}
    try:
        plan = read_plan(plan_file)
        return {DataSets(settings.data, b"").choose(plan.data): (plan.target, plan.id)}
    except CoregError:  # the check of the plan reports it
        return {}


@one_snapshot()
def check(
    settings: AgentSettings,
    note: Note,
    plan_file: Path | None = None,
    files: Sequence[Path] = (),
) -> int:
    """Run every check, in the order of joining, and return the exit code of the first failure."""
    site = CheckedSite(settings, plan_file, tuple(files), _columns(settings, plan_file))
    codes = [_run(title, work(site), note) for title, work in BEFORE_TABLES.items()]
    for name, inputs in settings.data.items():
        codes.append(_run(f"table {name}".rstrip(), _table(site, name, inputs), note))
        if codes[-1] == 0:  # else its faults are enough
            codes.append(_run(f"ids {name}".rstrip(), _ids(site, name, inputs), note))
    codes += [_run(title, work(site), note) for title, work in AFTER_TABLES.items()]
    return next((code for code in codes if code), 0)


def _run(title: str, lines: Iterator[CheckLine], note: Note) -> int:
    """Note the lines of a check, and return the exit code of its failure, or 0."""
    code = 0
    try:
        for line in lines:
            note(
                line.text if line.alone else f"{title}: {line.text}", line.good, line.fields(title)
            )
            if line.good is False:
                code = Refused.exit_code
    except BadTable as error:  # one line for each fault
        for fault in error.faults:
            later = fault.kind in WAITING  # a study can mend it
            fields = {"check": title.partition(" ")[0], "warning": later, **fault.fields()}
            note(f"{title}: {fault.text}{owner_hint(error)}", later, fields)
            code = code if later else error.exit_code
    except NotChecked as why:
        note(f"not checked: {title} ({why})", None, {"check": title})
    except CoregError as error:
        note(f"{title}: {error}{owner_hint(error)}", False, {"check": title})
        code = error.exit_code
    return code


class NotChecked(Exception):
    """A check that is not possible here, with the reason."""


# --- before the tables ----------------------------------------------------------------------------


def _versions(_: CheckedSite) -> Iterator[CheckLine]:
    """The sites need the same release of coreg; other packages can differ."""
    others = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "scipy", "grpcio"))
    own = release() or "(not installed: run from its source)"
    yield CheckLine(f"coreg {own}, Python {platform.python_version()}, {others}")


def _ledger(site: CheckedSite) -> Iterator[CheckLine]:
    path = site.settings.ledger_path
    secret = site.settings.identity / "salt"
    require_ledger(path, secret)
    lines = sum(1 for _ in read_lines(path)) if path.exists() else 0
    if lines or secret.exists():  # `check` makes no secret
        site.salt = site_salt(secret, path)
    if lines:
        yield CheckLine(f"{path}, {lines} lines, the chain is whole")
    elif secret.exists():
        yield CheckLine(
            f"{path} has no line, which is normal before the first run. If this site took part "
            "before, restore the ledger from a backup (docs/how-to/operate-a-site.md)",
            warning=True,
        )
    else:
        yield CheckLine(f"{path} begins with the first run")


# --- a table --------------------------------------------------------------------------------------


def _table(site: CheckedSite, name: str, inputs: Inputs) -> Iterator[CheckLine]:
    target, id_column = site.columns.get(name, ("", ""))
    try:
        inputs = named(inputs, target, id_column)
    except BadTable as open_columns:
        site.untrained.add(name)
        yield _for_scoring(inputs, id_column, open_columns)
        return
    prepared = _prepared(inputs, site.salt)
    site.prepared[name] = prepared
    for text in prepared.notes:
        yield CheckLine(text, warning=text not in prepared.table.notes, alone=True)
    for text in suspects(prepared.table, prepared.preprocessing, inputs.target or ""):
        yield CheckLine(text, warning=True, alone=True)
    if both := prepared.labelled_and_shared:
        of_table = f"table {name}".rstrip()
        yield CheckLine(
            f"{of_table}: labelled instances that are shared too: {len(both)} ({some(both)}). An"
            " additive training learns most from them. In an agreement other members can estimate"
            " their labels",
            warning=False,
            alone=True,
        )
    yield CheckLine(_described(prepared, inputs))


def _for_scoring(inputs: Inputs, id_column: str, open_columns: BadTable) -> CheckLine:
    """Of a table without a target: its ids, which a scoring needs."""
    left_open(inputs)  # raises what no study can mend
    try:
        scores = named(inputs, id_column=id_column, trains=False)
    except BadTable:
        raise open_columns.advised(
            lambda todo: f"{todo} If the study names it, check its plan: --plan FILE."
        ) from None
    many = len(read_ids(scores, "exact"))
    text = "for scoring. Columns are not checked: for a training give --target or --no-labels"
    return CheckLine(f"{many} ids, {text}", warning=True)


def _prepared(inputs: Inputs, salt: bytes) -> Prepared:
    """The rows of a training. A fault comes with those of the ids, which an alignment compares."""
    try:
        return prepare(inputs, salt)
    except BadTable as error:
        faults = Faults()
        faults.add(*(fault for fault in error.faults if fault.about != inputs.id))
        with faults.caught():
            read_ids(inputs, "folded")
        faults.raise_any()
        raise


def _described(prepared: Prepared, inputs: Inputs) -> str:
    """The sizes and columns of a table, and the digest that all sites compare."""
    data = prepared.data
    text = (
        f"{len(data.X)} labelled and {len(data.Z)} shared instances, {data.X.shape[1]} features"
        f" from the columns {prepared.preprocessing.summary}; digest of the ordered ids"
        f" {data.ids_digest[:12]} (every site must show the same, unless a run aligns the ids)"
    )
    if inputs.positive:
        text += f'; {inputs.positive!r} is 1, and the study needs task = "classification"'
    return text


def _ids(site: CheckedSite, name: str, inputs: Inputs) -> Iterator[CheckLine]:
    _, id_column = site.columns.get(name, ("", ""))
    folded = read_ids(named(inputs, id_column=id_column, trains=False), "folded")
    text = f"{len(folded)} ids, as an alignment compares them: {some(folded)}"
    if warning := guessable(folded):
        yield CheckLine(f"{text}. {warning.removeprefix('WARNING: ')}", warning=True)
    else:
        yield CheckLine(text)


# --- after the tables -----------------------------------------------------------------------------


def _policy(site: CheckedSite) -> Iterator[CheckLine]:
    yield CheckLine(changed_keys(read_policy(site.settings.policy)))


def _modes(site: CheckedSite) -> Iterator[CheckLine]:
    paths = file_modes.require_own(site.settings, site.files)
    if warnings := [*file_modes.readable(site.settings)]:
        yield CheckLine("; ".join(warnings), warning=True)
        return
    listed = ", ".join(map(str, paths)) or "no identity, policy or configuration yet"
    yield CheckLine(f"not writable by all users: {listed}")


def _identity(site: CheckedSite) -> Iterator[CheckLine]:
    site.identity = identity = check_identity(site.settings.identity)
    valid = f"{identity.name}, valid until {identity.not_after:%Y-%m-%d}"
    if warning := identity.expiry_warning():
        yield CheckLine(f"{valid}. {warning}", warning=True)
    else:
        yield CheckLine(valid)


def _plan(site: CheckedSite) -> Iterator[CheckLine]:
    if site.plan_file is not None:
        yield from check_plan(read_plan(site.plan_file), site)


def _connection(site: CheckedSite) -> Iterator[CheckLine]:
    address = site.settings.coordinator
    if address is None:
        raise NotChecked("no --coordinator")
    host_port(address, "--coordinator (or agent.toml)")
    if site.identity is None:  # its fault is reported already
        raise NotChecked(f"{address}: no identity")
    yield CheckLine(asyncio.run(check_connection(address, site.identity)))


def _models(site: CheckedSite) -> Iterator[CheckLine]:
    folder = site.settings.models
    free = human_bytes(ModelStore("", folder).check())
    yield CheckLine(f"models go to {folder}, where {free} are free")


BEFORE_TABLES = {"versions": _versions, "ledger": _ledger}
AFTER_TABLES = {
    "policy": _policy,
    "modes": _modes,
    "identity": _identity,
    "plan": _plan,
    "connection": _connection,
    "models": _models,
}
