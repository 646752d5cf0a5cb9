"""The scripts of examples/ in their quick form: each prints what its docstring claims, and draws
its picture. Benchmarks load.
"""

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from issued import enrolled

import coreg_federation as coreg
from coordinator.authority.invitations import invite
from coreg_core.errors import BadData, Refused, UsageError
from coreg_federation.event_loop import outside
from coreg_federation.site import Site
from coreg_wire.terminal.command_line import OperatorInterrupt
from examples.demo.processes import free_port
from examples.demo.svg import axis
from site_agent.identity.members import OTHERS
from site_agent.machine.notices import data_unusable, finding

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def quick(name, folder):
    """The lines that an example prints."""
    command = [sys.executable, ROOT / "examples" / f"{name}.py", "--quick"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if "errors.Unreachable: Ray does not start" in done.stderr:
        pytest.skip(done.stderr[-300:])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    [picture] = folder.iterdir()
    assert picture.name == f"{name}.svg"
    assert ET.parse(picture).getroot().tag.endswith("svg")
    return done.stdout.splitlines()


def numbers(line):
    return [float(text) for text in re.findall(r"(?<![\w.])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", line)]


def test_a_federation_ends_within_its_certified_bound(tmp_path):
    lines = quick("federation_in_one_process", tmp_path)
    assert len(lines) == 2
    for line in lines:
        assert "CONVERGED" in line
        *_, error, bound = numbers(line)
        assert 0.0 < error <= bound


def test_joining_pays_on_the_diabetes_study_by_its_own_interval(tmp_path):
    *bars, change = quick("does_joining_pay", tmp_path)
    assert len(bars) == 9
    mean, low, high = numbers(change)
    assert low < mean < high < 0.0
    errors = {
        line.partition(" error")[0].strip(): numbers(line.partition(" error")[2])[0]
        for line in bars
    }
    for site in ("clinic", "laboratory-1", "laboratory-2"):
        assert errors[f"{site}, joined"] < errors[f"{site}, mean of labels"], (
            "the columns predict the target"
        )


def test_an_additive_target_needs_the_additive_objective(tmp_path):
    _, parts, same = map(numbers, quick("additive_agreement_pooled", tmp_path))
    _, alone, agreement, additive, mean, score, pooled = parts
    assert abs(agreement / alone - 1.0) < 0.05  # nothing to agree on
    assert (
        score < 0.9 * pooled < 0.9 * min(additive, mean)
    )  # one kernel on all columns has to learn that parts add up
    _, alone, agreement, *others, pooled = same
    assert agreement < alone
    assert pooled < min(others)


def test_folds_of_labelled_rows_have_scores_where_the_default_folds_have_none(tmp_path):
    default, *others = quick("grid_search_unlabelled_rows", tmp_path)
    assert "[nan nan nan nan]" in default
    found = {
        re.search(r"\((\w+)\)", line)[1]: line
        for line in others
        if line.startswith("labelled folds")
    }
    assert "polars" in found
    if "pandas" not in found:
        assert "pandas is not installed: polars only" in others
    for kind, line in found.items():
        uncoupled, _, coupled, _ = numbers(re.search(r"\[(.*)\]", line)[1])  # of the small ridge
        assert uncoupled + 0.1 < coupled < 1.0  # 0.006 where folds keep one unlabelled row
        assert line.replace(kind, "polars") == found["polars"]


def test_intervals_cover_what_they_promise_and_another_unit_drifts(tmp_path):
    lines = quick("model_intervals_drift", tmp_path)
    [covered] = [line for line in lines if line.startswith("intervals of")]
    # 102 labels judge it: a deviation is √(0.9 · 0.1/102) = 3.0 %. The stated deviations have their
    # own error.
    assert numbers(covered)[1] == pytest.approx(90.0, abs=3 * 4.5)
    assert "columns that drift: 0 in the same unit, 1 in another unit" in lines
    assert "column 'bmi': 102 of 102 cells" in lines[-1]


@pytest.mark.e2e
def test_sites_on_ray_end_on_the_bits_of_one_process(tmp_path):
    lines = quick("hundred_sites_on_ray", tmp_path)
    assert "CONVERGED" in lines[0]
    assert lines[1].endswith(": True")
    alone, joined, gaining = numbers(lines[2])
    assert joined < alone
    assert gaining > 50


@pytest.mark.e2e
def test_the_notebook_trains_three_sites_and_scores_together(tmp_path, monkeypatch, capsys):
    """The code cells in order, as Jupyter runs them."""
    notebook = json.loads((ROOT / "examples" / "federation.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells), (
        "saved without outputs"
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("COREG_PORT", str(free_port()))
    names = {"__name__": "notebook"}
    for cell in cells:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    said = capsys.readouterr().out
    assert "\nCONVERGED\n" in said
    assert "recommendation: " in said
    assert "training 1 of 3 with these labels (openings in policy.toml)." in said
    errors = re.findall(
        r"(mean of labels|local model|joined model|scored together) +(\d+\.\d) █+$",
        said,
        re.MULTILINE,
    )
    assert len(errors) == 4 * 3
    scored = [float(error) for name, error in errors if name == "scored together"]
    local = [float(error) for name, error in errors if name == "local model"]
    assert mean(scored) < mean(local), "of the sites together: each training draws its own noise"


def test_an_example_has_its_picture():
    assert {path.stem for path in (ROOT / "docs" / "examples").glob("*.svg")} == {
        path.stem for path in EXAMPLES
    }


def test_what_runs_an_event_loop_works_in_a_notebook_which_runs_one():
    async def cell():
        return outside(asyncio.run, asyncio.sleep(0, result="done"))

    assert asyncio.run(cell()) == "done"
    assert outside(asyncio.run, asyncio.sleep(0, result="done")) == "done"


def test_a_fault_of_the_own_table_is_in_the_error_of_the_site_that_has_it(tmp_path, monkeypatch):
    (tmp_path / "agent.toml").write_text('coordinator = "c:1"')

    def refused(settings, observer, asked, kind):
        for notice in (data_unusable(""), finding("which is the id column?")):
            observer(notice)
        raise Refused("a refused the plan: its data set cannot be used")

    monkeypatch.setattr("coreg_federation.site.app.join", refused)
    with pytest.raises(BadData, match="which is the id column"):
        Site(str(tmp_path)).train(tmp_path / "t.csv", approve=True)
    interrupt = OperatorInterrupt("interrupted.")
    monkeypatch.setattr(
        "coreg_federation.site.app.join", lambda *_: (_ for _ in ()).throw(interrupt)
    )
    with pytest.raises(KeyboardInterrupt, match="interrupted"):
        Site(tmp_path).train(tmp_path / "t.csv", approve=True)
    with pytest.raises(UsageError, match="no site has joined here"):
        Site(tmp_path / "none")
    with pytest.raises(
        UsageError, match="words = 'one two': the eight words of the study are needed, and this"
    ):
        Site(tmp_path).train(tmp_path / "t.csv", words="one two", approve=True)
    with pytest.raises(
        UsageError, match="data: a pandas or polars frame, or a path, is needed, not a ndarray"
    ):
        Site(tmp_path).train(np.zeros((2, 2)), approve=True)


def test_no_progress_is_shown_where_none_is_wanted(tmp_path, monkeypatch):
    (tmp_path / "agent.toml").write_text('coordinator = "c:1"')
    shown = []

    def told(settings, observer, asked, kind):
        observer(finding("a sentence"))
        raise Refused("the end")

    monkeypatch.setattr("coreg_federation.site.app.join", told)
    for progress in (None, shown.append):
        with pytest.raises(Refused, match="the end"):
            Site(tmp_path).train(tmp_path / "t.csv", approve=True, progress=progress)
    assert shown == ["a sentence"]


def test_other_words_are_refused_at_the_coordinator_and_raised_here(tmp_path, monkeypatch):
    """The other sites hear of it; `Refused` alone would leave them waiting."""
    (tmp_path / "agent.toml").write_text('coordinator = "c:1"')
    decisions = []

    def wrong(settings, observer, asked, kind):
        news = f"b is new; {OTHERS}"
        decisions.append(asyncio.run(asked.decide(None, {}, "the words of now", news)))

    monkeypatch.setattr("coreg_federation.site.app.join", wrong)
    with pytest.raises(Refused, match=r"not confirmed here .*\n  the words of now\n.*pass words="):
        Site(tmp_path).train(tmp_path / "t.csv", words="a b c d e f g h", approve=True)
    [decision] = decisions
    assert not decision.approved
    assert "another party poses as a site" in decision.reason


def test_a_folder_is_opened_again_without_its_coordinator(tmp_path):
    folder = enrolled(tmp_path / "site" / "identity").parent
    invitation = str(invite(folder / "authority", "north", f"127.0.0.1:{free_port()}"))
    assert coreg.join(invitation, str(folder)) == coreg.Site(str(folder))
    assert (folder / "agent.toml").exists()
    with pytest.raises(UsageError, match="holds the certificate of north"):
        coreg.join(invitation.replace("/north", "/south"), folder)
    made = coreg.Federation.create(str(tmp_path / "fed"), sites=["a", "b", "c"])
    assert coreg.Federation(str(tmp_path / "fed")).folder == made.folder


@given(st.floats(1e-12, 1e12), st.floats(1.0, 1e9), st.booleans())
def test_an_axis_holds_its_values_between_its_first_and_last_tick(low, factor, log):
    high = low * factor
    at, ticks = axis(low, high, 0.0, 100.0, log=log)
    assert 2 <= len(ticks) <= 17
    assert list(ticks) == sorted(ticks)
    assert at(ticks[0]) == pytest.approx(0.0, abs=1e-9)
    for value in (low, high):
        assert -1e-4 <= at(value) <= 100.0 + 1e-4


PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1])\nfor name in sys.argv[2:]:\n    assert"
    " __import__(name), name"
)


def test_every_script_of_benchmarks_finds_what_it_imports():
    folder = ROOT / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py"))
    assert "harness" in names
    command = [sys.executable, "-c", PROGRAM, folder, *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
