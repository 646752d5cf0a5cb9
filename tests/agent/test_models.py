"""A run's models on the disk: what stands there already is never lost, and what is in the way is said before the run."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from coreg_core.agreement.views import KernelExpansion, Solution
from coreg_core.agreement.views.left_out import PathChoice
from coreg_core.errors import StorageError, UsageError
from coreg_core.kernels.functions import Linear
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Agreement, Membership, Plan
from site_agent.data.prepare import Inputs, prepare
from site_agent.machine.training import SiteResult
from site_agent.models.file import load_model
from site_agent.models.writer import Models, check_output

TABLE = "id,a,y\n1,1.5,1\n2,2,2\n3,4,\n"
PLAN = Plan("run-1", "tests", Membership(("north",), 1), Agreement(coupling=(0.5,)))


@pytest.fixture
def models(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    prepared = prepare(Inputs(tmp_path / "t.csv", "y", "id"))
    return Models("north", prepared, "y", tmp_path / "north.coreg", None)


def result(run="run-1", coupling=(0.5,), weight=1.0, plan=PLAN, alone=False):
    """A result whose models predict the given multiple of the feature."""
    plan = dataclasses.replace(plan, run=run, objective=dataclasses.replace(plan.objective, coupling=coupling))

    def solution(factor):
        return Solution(KernelExpansion(Linear(), np.eye(1), np.array([factor])), np.zeros(1), 0.0)

    solutions = tuple(solution(weight + j) for j in range(len(coupling)))
    return SiteResult(Outcome.CONVERGED, "", plan, solutions, solution(-1.0) if alone else None, 0.0, 1.0)


def names(folder, pattern="*.coreg"):
    return sorted(path.name for path in folder.glob(pattern))


def test_a_model_is_written_where_it_was_asked_for(models, tmp_path):
    notes = []
    assert models.write(result(), notes.append) == (tmp_path / "north.coreg",)
    model = load_model(tmp_path / "north.coreg")
    assert (model.run, model.site, model.coupling, model.stop) == ("run-1", "north", 0.5, "CONVERGED")
    assert model.plan == json.loads(json.dumps(PLAN.to_dict()))
    assert notes == []


def test_a_model_of_an_earlier_run_is_kept_under_its_runs_name_and_said(models, tmp_path):
    models.write(result("run-1", weight=1.0), lambda text: None)
    earlier = (tmp_path / "north.coreg").read_bytes()
    notes = []
    assert models.write(result("run-2", weight=2.0), notes.append) == (tmp_path / "north.coreg",)
    assert load_model(tmp_path / "north.coreg").run == "run-2"
    kept = tmp_path / "north-run-run-1.coreg"
    assert kept.read_bytes() == earlier
    assert notes == [f"{tmp_path / 'north.coreg'} was the model of an earlier run; it is kept as {kept}"]
    models.write(result("run-3"), notes.append)
    assert names(tmp_path) == ["north-run-run-1.coreg", "north-run-run-2.coreg", "north.coreg"]


def test_the_model_of_the_same_run_replaces_itself(models, tmp_path):
    models.write(result(weight=1.0), lambda text: None)
    notes = []
    models.write(result(weight=2.0), notes.append)
    assert notes == []
    assert names(tmp_path) == ["north.coreg"]
    assert load_model(tmp_path / "north.coreg").function.coef.tolist() == [2.0]


def test_a_name_that_is_taken_is_numbered_and_nothing_is_ever_written_over(models, tmp_path):
    """The same run's model, fetched again after another run and put aside once more."""
    contents = []
    for run, weight in (("run-1", 1.0), ("run-2", 2.0), ("run-1", 3.0), ("run-2", 4.0)):
        models.write(result(run, weight=weight), lambda text: None)
        contents.append(weight)
    found = sorted(load_model(path).function.coef[0] for path in tmp_path.glob("*.coreg"))
    assert found == contents
    assert names(tmp_path) == [
        "north-run-run-1-2.coreg",
        "north-run-run-1.coreg",
        "north-run-run-2.coreg",
        "north.coreg",
    ]


def test_every_model_of_a_path_and_the_one_alone_are_kept_too(models, tmp_path):
    models = dataclasses.replace(models, alone=tmp_path / "alone.coreg")
    for run in ("run-1", "run-2"):
        notes = []
        written = models.write(result(run, coupling=(0.25, 0.5), alone=True), notes.append)
    assert [path.name for path in written] == ["north-coupling-0.25.coreg", "north-coupling-0.5.coreg", "alone.coreg"]
    assert {load_model(path).run for path in written} == {"run-2"}
    kept = names(tmp_path, "*-run-run-1.coreg")
    assert kept == [
        "alone-run-run-1.coreg",
        "north-coupling-0.25-run-run-1.coreg",
        "north-coupling-0.5-run-run-1.coreg",
    ]
    assert {load_model(tmp_path / name).run for name in kept} == {"run-1"}
    assert len(notes) == 3


def test_the_model_alone_stands_beside_the_joined_one_wherever_nobody_said_where(models, tmp_path):
    written = models.write(result(alone=True), lambda text: None)
    assert [path.name for path in written] == ["north.coreg", "north-alone.coreg"]
    assert load_model(written[1]).function.coef.tolist() == [-1.0]


def test_of_a_path_the_site_gets_what_its_own_labels_are_for_and_hears_why(models, tmp_path):
    errors = (np.array([3.0, 3.0]), np.array([1.0, 1.0]))
    chosen = dataclasses.replace(
        result(coupling=(0.0, 0.5)), couplings=(0.0, 0.5), choice=PathChoice(1, errors, np.array([2.0, 2.0]))
    )
    notes = []
    written = models.write(chosen, notes.append)
    assert [path.name for path in written] == ["north.coreg", "north-coupling-0.coreg", "north-coupling-0.5.coreg"]
    assert load_model(written[0]).coupling == 0.5
    assert load_model(written[0]).function.coef.tolist() == load_model(written[2]).function.coef.tolist()
    assert "coupling 0.5 serves this site best" in notes[0]
    assert "0: 3, 0.5: 1" in notes[0], "each member's left-out error"
    assert "by 2 ± 0, beside 3 ± 0 alone" in notes[1], "what is reported is nested"
    assert "keep the joined model" in notes[2]


def test_a_run_without_models_leaves_the_earlier_one_alone(models, tmp_path):
    models.write(result("run-1"), lambda text: None)
    before = (tmp_path / "north.coreg").read_bytes()
    ended = dataclasses.replace(result("run-2"), outcome=Outcome.STALLED, solutions=())
    assert models.write(ended, lambda text: None) == ()
    assert models.write(dataclasses.replace(ended, plan=None), lambda text: None) == ()
    assert (tmp_path / "north.coreg").read_bytes() == before
    assert names(tmp_path) == ["north.coreg"]


@pytest.mark.parametrize("what", ["output", "alone"])
def test_a_file_that_is_no_model_is_in_the_way_and_said_before_joining(models, tmp_path, what):
    (tmp_path / "notes.txt").write_text("not to be lost")
    models = dataclasses.replace(models, **{what: tmp_path / "notes.txt"})
    with pytest.raises(UsageError, match=r"notes\.txt.*It would be written over: move it away"):
        models.check()
    assert (tmp_path / "notes.txt").read_text() == "not to be lost"


def test_a_damaged_model_is_in_the_way_as_well(models, tmp_path):
    path = tmp_path / "north.coreg"
    models.write(result(), lambda text: None)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UsageError, match="It would be written over"):
        models.check()


def test_a_model_is_not_in_the_way_and_nothing_is_not_either(models, tmp_path):
    models.check()
    check_output(None)
    models.write(result(), lambda text: None)
    models.check()


def test_places_where_no_model_can_be(tmp_path):
    with pytest.raises(UsageError, match="no such folder for the model"):
        check_output(tmp_path / "none" / "m.coreg")
    with pytest.raises(UsageError, match="name a file for the model"):
        check_output(tmp_path)


def test_a_file_in_the_way_of_a_path_of_couplings_does_not_cost_the_run(models, tmp_path):
    """Which couplings there are is known once the plan came, so nobody can look at these names before joining."""
    (tmp_path / "north-coupling-0.25.coreg").write_text("not a model, and not to be lost")
    notes = []
    written = models.write(result(coupling=(0.25, 0.5)), notes.append)
    assert {load_model(path).run for path in written} == {"run-1"}
    assert [load_model(path).coupling for path in written] == [0.25, 0.5]
    assert (tmp_path / "north-coupling-0.25.coreg").read_text() == "not a model, and not to be lost"
    [note] = notes
    assert note.endswith(f"is no model of coreg, and stays as it is: the model goes to {written[0]}")


def test_a_disk_that_is_full_leaves_the_earlier_model_somewhere(models, tmp_path, monkeypatch):
    models.write(result("run-1"), lambda text: None)
    before = (tmp_path / "north.coreg").read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        models.write(result("run-2"), lambda text: None)
    assert before in [path.read_bytes() for path in tmp_path.glob("*.coreg")]


def test_a_models_own_name_may_hold_dots_and_spaces(models, tmp_path):
    folder = Path(tmp_path / "the models.d")
    folder.mkdir()
    models = dataclasses.replace(models, output=folder / "north v1.2.coreg")
    for run in ("run-1", "run-2"):
        models.write(result(run), lambda text: None)
    assert names(folder) == ["north v1.2-run-run-1.coreg", "north v1.2.coreg"]
