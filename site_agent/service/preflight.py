"""Everything that can be checked before joining, each with its verdict."""

import platform
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from coreg_core.errors import BadData, CoregError, Refused
from coreg_wire.files.plan_file import read_plan
from coreg_wire.terminal.output import human_bytes
from coreg_wire.transport.release import release
from site_agent.config.settings import ONLY, AgentSettings
from site_agent.data.errors import BadTable
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare, site_salt
from site_agent.machine.site_data import PrivateData
from site_agent.models.writer import check_output
from site_agent.policy.dry_run import rehearse
from site_agent.policy.policy import as_written, read_policy
from site_agent.service.app import host_and_port, who_am_i
from site_agent.session.diagnose import probe_server


class _Skipped(Exception):
    """What cannot be checked here; says why."""


def check(
    settings: AgentSettings,
    note: Callable[[str, bool | None, Mapping[str, Any]], None],
    plan_file: Path | None = None,
) -> int:
    """Every check, in the order in which joining would need them; the exit code of the first failure.

    ``plan_file``: a plan that the policy and these rows are held to as well.

    ``note`` is told a sentence, whether all is well (None: skipped, nobody knows), and fields for a program: the check, and of a
    table's fault all that `Fault.fields` has.
    """
    code = 0

    def step(title: str, work: Callable[[], str]) -> bool:
        nonlocal code
        try:
            note(f"{title}: {work()}", True, {"check": title})
        except _Skipped as why:
            note(f"{title}: {why}", None, {"check": title})
        except BadTable as error:  # everything that is wrong with it, each for itself
            for fault in error.faults:
                note(f"{title}: {fault.text}", False, {"check": title.partition(" ")[0], **fault.fields()})
            code = code or error.exit_code
            return False
        except CoregError as error:
            note(f"{title}: {error}", False, {"check": title})
            code = code or error.exit_code
            return False
        return True

    found: dict[str, PrivateData] = {}

    def table(name: str, inputs: Inputs) -> str:
        prepared = prepare(inputs, salt)
        d = found[name] = prepared.data
        for text in prepared.notes:
            note(text, True, {"check": "table"})
        names = ", ".join(prepared.preprocessing.feature_names)
        return (
            f"{len(d.X)} labelled and {len(d.Z)} unlabelled instances, {d.X.shape[1]} features ({names}); "
            f"digest of the ordered ids {d.ids_digest[:12]} (every site must show the same)"
        )

    def identity() -> str:
        name, checked = who_am_i(settings)
        if checked is None:
            return f"{name}"
        warning = checked.expiry_warning()
        return f"{name}, valid until {checked.not_after:%Y-%m-%d}" + (f". {warning}" if warning else "")

    def network() -> str:
        if settings.coordinator is None:
            raise _Skipped("no coordinator is named (--coordinator)")
        host, port = host_and_port(settings.coordinator)
        if not known:  # it has been said what is wrong with it, and that it stands in the way here need not be
            raise _Skipped(f"{settings.coordinator} is not probed without an identity")
        _, checked = who_am_i(settings)
        if checked is None:
            raise _Skipped(f"{settings.coordinator} is not probed with --insecure")
        return probe_server(host, port, checked)

    def plan(path: Path) -> None:
        """Each reason for itself: they are told at once, as the policy tells them."""
        nonlocal code
        fields, planned = {"check": "plan"}, read_plan(path)
        data = found.get(planned.data) or (next(iter(found.values())) if len(found) == 1 else None)
        if data is None or (sections and planned.data and planned.data not in found):
            raise BadData(
                f"is not judged without a table that can be used{f' ({planned.data!r})' * bool(planned.data)}."
            )
        judged = rehearse(planned, who_am_i(settings)[0], read_policy(settings.policy), data, settings.ledger_path)
        for text in judged.told:
            note(f"plan: {text}", True, fields)
        for reason in judged.reasons:
            note(f"plan: {reason}", False, fields)
        if judged.reasons:
            code = code or Refused.exit_code
        else:
            note("plan: this site would take part in it", True, fields)

    def disk() -> str:
        if sections:  # the folder is made when there is a model
            free = shutil.disk_usage(next(p for p in settings.models.resolve().parents if p.is_dir())).free
            return f"models go to {settings.models}, where {human_bytes(free)} are free"
        check_output(settings.output)
        free = shutil.disk_usage(settings.output.resolve().parent).free
        return f"the model goes to {settings.output}, where {human_bytes(free)} are free"

    # Earlier answers are on record under this secret. `check` makes none: without it, nothing was answered.
    secret = settings.identity / "salt"
    salt = site_salt(secret) if secret.exists() else b""
    step("versions", versions)
    sections = ONLY not in settings.data
    for name, inputs in settings.data.items():
        step(f"table {name}".rstrip(), partial(table, name, inputs))
    step("policy", lambda: f"accepts {', '.join(as_written(read_policy(settings.policy)))}")
    known = step("identity", identity)
    if plan_file is not None:
        try:
            plan(plan_file)
        except CoregError as error:
            note(f"plan: {error}", False, {"check": "plan"})
            code = code or error.exit_code
    step("coordinator", network)
    step("output", disk)
    return code


def versions() -> str:
    """What computes and what speaks; other sites may have others, but for the release of coreg."""
    others = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "scipy", "grpcio"))
    return f"coreg {release() or '(not installed: run from its source)'}, Python {platform.python_version()}, {others}"
