"""Checks before a site joins, each with its verdict."""

import asyncio
import platform
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from coreg_core.errors import CoregError, Refused
from coreg_core.plan import Plan
from coreg_wire.files.toml_file import read_plan, toml
from coreg_wire.terminal.command_line import human_bytes, owner_hint
from coreg_wire.transport.service import host_port, release
from site_agent.config.settings import AgentSettings
from site_agent.consent.policy import read_policy
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
from site_agent.service.plan_check import Note, Tables, check_plan
from site_agent.session.stream import check_connection


class _Skipped(Exception):
    """A check that is not possible here, with the reason."""


class _Warned(Exception):
    """A check that found what the operator has to mend before a run, and the mend."""


@one_snapshot()
def check(
    settings: AgentSettings,
    note: Note,
    plan_file: Path | None = None,
    files: Sequence[Path] = (),
) -> int:
    """Run every check, in the order of joining, and return the exit code of the first failure."""
    code = 0
    # The ledger names instances under this secret. Without a secret there are no earlier answers.
    secret = settings.identity / "salt"
    salt = b""

    def step(title: str, work: Callable[[], str]) -> bool:
        nonlocal code
        try:
            note(f"{title}: {work()}", True, {"check": title})
        except _Warned as why:
            note(f"{title}: {why}", True, {"check": title, "warning": True})
        except _Skipped as why:
            note(f"not checked: {title} ({why})", None, {"check": title})
            return False
        except BadTable as error:  # one line for each fault
            for fault in error.faults:
                later = fault.kind in WAITING  # a study can mend it
                fields = {"check": title.partition(" ")[0], "warning": later, **fault.fields()}
                note(f"{title}: {fault.text}{owner_hint(error)}", later, fields)
                code = code or (0 if later else error.exit_code)
            return all(fault.kind in WAITING for fault in error.faults)
        except CoregError as error:
            note(f"{title}: {error}{owner_hint(error)}", False, {"check": title})
            code = code or error.exit_code
            return False
        return True

    plan: Plan | None = None
    misread: CoregError | None = None  # the fault of the plan's file
    try:
        plan = None if plan_file is None else read_plan(plan_file)
    except CoregError as error:
        misread = error
    columns = columns_of(plan, settings)

    prepared_sets: dict[str, Prepared] = {}
    untrained: set[str] = set()  # data sets without a target

    def table(name: str, inputs: Inputs) -> str:
        target, id_column = columns.get(name, ("", ""))
        try:
            inputs = named(inputs, target, id_column)
        except BadTable as open_columns:
            untrained.add(name)
            left_open(inputs)  # raises what no study can mend
            try:
                scores = named(inputs, id_column=id_column, trains=False)
            except BadTable:
                raise open_columns.advised(
                    lambda todo: f"{todo} If the study names it, check its plan: --plan FILE."
                ) from None
            many = len(read_ids(scores, "exact"))
            raise _Warned(
                f"{many} ids, for scoring. Columns are not checked: for a training give --target"
                " or --no-labels"
            ) from None
        try:
            prepared = prepare(inputs, salt)
        except BadTable as error:
            every = Faults()
            every.add(*(fault for fault in error.faults if fault.about != inputs.id))
            with every.caught():  # an alignment compares the ids of all rows
                read_ids(inputs, "folded")
            every.raise_any()
            raise
        prepared_sets[name] = prepared
        for text in prepared.notes:
            note(text, True, {"check": "table", "warning": text not in prepared.table.notes})
        for text in suspects(prepared.table, prepared.preprocessing, inputs.target or ""):
            note(text, True, {"check": "table", "warning": True})
        both = prepared.labelled_and_shared
        if both:
            text = (
                f"table {name}".rstrip()
                + f": labelled instances that are shared too: {len(both)} ({some(both)}). An"
                " additive training learns most from them. In an agreement other members can"
                " estimate their labels"
            )
            note(text, True, {"check": "table", "warning": False})
        return described(prepared, inputs)

    def ids(name: str, inputs: Inputs) -> str:
        _, id_column = columns.get(name, ("", ""))
        folded = read_ids(named(inputs, id_column=id_column, trains=False), "folded")
        listed = f"{len(folded)} ids, as an alignment compares them: {some(folded)}"
        warning = guessable(folded)
        if warning:
            raise _Warned(f"{listed}. {warning.removeprefix('WARNING: ')}")
        return listed

    def policy() -> str:
        """The keys that differ from the defaults, without the secret."""
        values = read_policy(settings.policy).model_dump(exclude_defaults=True)
        changed = [
            f"{key} = {'(not shown)' if key == 'ids_secret' else toml(value)}"
            for key, value in values.items()
        ]
        return f"keys that differ from the defaults: {', '.join(changed) or 'none'}"

    def identity() -> str:
        checked = check_identity(settings.identity)
        valid = f"{checked.name}, valid until {checked.not_after:%Y-%m-%d}"
        if warning := checked.expiry_warning():
            raise _Warned(f"{valid}. {warning}")
        return valid

    def modes() -> str:
        paths = file_modes.require_own(settings, tuple(files))
        if warnings := [*file_modes.readable(settings)]:
            raise _Warned("; ".join(warnings))
        listed = ", ".join(map(str, paths)) or "no identity, policy or configuration yet"
        return f"not writable by all users: {listed}"

    def network() -> str:
        if settings.coordinator is None:
            raise _Skipped("no --coordinator")
        host_port(settings.coordinator, "--coordinator (or agent.toml)")
        if not known:  # the identity's fault is reported already
            raise _Skipped(f"{settings.coordinator}: no identity")
        return asyncio.run(
            check_connection(settings.coordinator, check_identity(settings.identity))
        )

    def ledger() -> str:
        nonlocal salt
        path = settings.ledger_path
        require_ledger(path, secret)
        lines = sum(1 for _ in read_lines(path)) if path.exists() else 0
        if lines or secret.exists():  # `check` makes no secret
            salt = site_salt(secret, path)
        if not lines and secret.exists():
            raise _Warned(
                f"{path} has no line, which is normal before the first run. If this site took part "
                "before, restore the ledger from a backup (docs/how-to/operate-a-site.md)"
            )
        return (
            f"{path}, {lines} lines, the chain is whole"
            if lines
            else f"{path} begins with the first run"
        )

    def disk() -> str:
        free = ModelStore("", settings.models).check()
        return f"models go to {settings.models}, where {human_bytes(free)} are free"

    step("versions", versions)
    step("ledger", ledger)
    for name, inputs in settings.data.items():
        if step(
            f"table {name}".rstrip(), partial(table, name, inputs)
        ):  # else its faults are enough
            step(f"ids {name}".rstrip(), partial(ids, name, inputs))
    step("policy", policy)
    step("modes", modes)
    known = step("identity", identity)
    try:
        if misread is not None:
            raise misread
        tables = Tables(salt, prepared_sets, untrained)
        if plan is not None and not check_plan(plan, settings, tables, note):
            code = code or Refused.exit_code
    except CoregError as error:
        note(f"plan: {error}", False, {"check": "plan"})
        code = code or error.exit_code
    step("connection", network)
    step("models", disk)
    return code


def columns_of(plan: Plan | None, settings: AgentSettings) -> dict[str, tuple[str, str]]:
    """The target and the id that the plan names, by the data set that it chooses here."""
    if plan is None:
        return {}
    try:
        chosen = DataSets(settings.data, b"").choose(plan.data)
    except CoregError:  # the check of the plan reports it
        return {}
    return {chosen: (plan.target, plan.id)}


def described(prepared: Prepared, inputs: Inputs) -> str:
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


def versions() -> str:
    """Versions of the software.

    The sites need the same release of coreg; other packages can differ.
    """
    others = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "scipy", "grpcio"))
    return (
        f"coreg {release() or '(not installed: run from its source)'}, Python"
        f" {platform.python_version()}, {others}"
    )
