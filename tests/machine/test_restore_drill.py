"""The restore drill of docs/production.md, step by step, on a store that went on after its backup."""

import re
import shutil
from pathlib import Path

import pytest
from stepwise import remembered
from test_store import NOW
from test_store_damage import PLAN, filled
from tiny import make_plan
from typer.testing import CliRunner

from coordinator.cli.app import app
from coordinator.machine.state import resume
from coordinator.store.runs import RunStore
from coordinator.store.watermark import mark_path
from coreg_core.errors import StorageError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "production.md"


def coordinator(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_drill(tmp_path: Path) -> None:
    store, backup = tmp_path / "runs.sqlite", tmp_path / "runs-2026-11.sqlite"
    filled(store)
    known = remembered(resume(PLAN, RunStore(store).records(PLAN.run)))
    assert "whole" in coordinator("backup", backup, "--store", store)
    later = RunStore(store)
    later.begin(make_plan(run="later"), NOW)
    later.close()

    assert "checksums fit" in coordinator("verify", "--store", backup)
    listed = coordinator("runs", "--store", backup)
    assert PLAN.run in listed
    assert "later" not in listed

    for beside in tmp_path.glob("runs.sqlite-*"):
        beside.unlink()
    shutil.copy(backup, store)
    with pytest.raises(StorageError, match=rf"lacks its last .* remove {re.escape(mark_path(store).name)}"):
        RunStore(store)
    mark_path(store).unlink()
    assert remembered(resume(PLAN, RunStore(store).records(PLAN.run))) == known
    assert "checksums fit" in coordinator("verify", "--store", store)


def test_the_page_has_these_steps() -> None:
    told = PAGE.read_text(encoding="utf-8")
    for step in (
        "coreg-coordinator backup runs-2026-11.sqlite",
        "coreg-coordinator verify",
        "coreg-coordinator runs",
        "runs.sqlite.mark",
    ):
        assert step in told
    assert "tests/machine/test_restore_drill.py" in told
