"""A run's models onto the disk: nothing there is lost, and a file in the way is refused before the run."""

import dataclasses
import json
import re

import numpy as np
import pytest
from agent_files import inputs, prepared, write
from trained_sites import SITES, trained

from coreg_core.additive.moments import ScoreWeights
from coreg_core.agreement.views import KernelExpansion, PathChoice, Solution
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.kernels.functions import Linear
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.setting import Membership
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.data.tables import read_table
from site_agent.machine.job import SiteResult
from site_agent.models import findings
from site_agent.models.batch import batch_of
from site_agent.models.file import load_model
from site_agent.models.writer import Models, check_output

PLAN = Plan("run-1", "tests", Membership(("north",), 1), Agreement(coupling=(0.5,)))


@pytest.fixture
def models(tmp_path):
    table = write(tmp_path, "id,a,y\n1,1.5,1\n2,2,2\n3,4,\n")
    return Models("north", prepared(table), "y", tmp_path / "north.coreg", None)


def result(run="run-1", coupling=(0.5,), weight=1.0, alone=False):
    """A result whose models predict the given multiple of the feature."""
    plan = dataclasses.replace(PLAN, run=run, objective=dataclasses.replace(PLAN.objective, coupling=coupling))

    def solution(factor):
        return Solution(KernelExpansion(Linear(), np.eye(1), np.array([factor])), np.zeros(1), 0.0)

    solutions = tuple(solution(weight + j) for j in range(len(coupling)))
    return SiteResult(Outcome.CONVERGED, "", plan, solutions, solution(-1.0) if alone else None, 0.0, 1.0)


def written(models, run_result):
    """The files, and the notes."""
    notes = []
    return models.write(run_result, notes.append), notes


def names(folder, pattern="*.coreg"):
    return sorted(path.name for path in folder.glob(pattern))


def slope(path):
    return load_model(path).function.coef.tolist()[0]


def test_a_model_is_written_where_it_was_asked_for(models, tmp_path):
    assert written(models, result()) == ((tmp_path / "north.coreg",), [])
    model = load_model(tmp_path / "north.coreg")
    assert (model.run, model.site, model.coupling, model.stop) == ("run-1", "north", 0.5, "CONVERGED")
    assert model.plan == json.loads(json.dumps(PLAN.to_dict()))


@pytest.mark.parametrize("stem", ["north", "the models.d/north v1.2"])
def test_a_model_of_an_earlier_run_is_kept_under_its_runs_name_and_noted(models, tmp_path, stem):
    output = tmp_path / f"{stem}.coreg"
    output.parent.mkdir(exist_ok=True)
    models = dataclasses.replace(models, output=output)
    written(models, result("run-1"))
    earlier, kept = output.read_bytes(), output.with_name(f"{output.stem}-run-run-1.coreg")
    paths, notes = written(models, result("run-2", weight=2.0))
    assert (paths, load_model(output).run, kept.read_bytes()) == ((output,), "run-2", earlier)
    assert notes == [f"{output} was the model of an earlier run. It is now {kept}"]
    written(models, result("run-3"))
    assert names(output.parent) == [f"{output.stem}-run-run-{n}.coreg" for n in (1, 2)] + [output.name]


def test_a_model_of_an_earlier_attempt_at_the_run_is_replaced(models, tmp_path):
    written(models, result())
    assert written(models, result(weight=2.0)) == ((tmp_path / "north.coreg",), [])
    assert (names(tmp_path), slope(tmp_path / "north.coreg")) == (["north.coreg"], 2.0)


def test_every_model_of_a_path_and_the_local_one_are_kept_too(models, tmp_path):
    models = dataclasses.replace(models, local_model=tmp_path / "alone.coreg")
    for run in ("run-1", "run-2"):
        paths, notes = written(models, result(run, coupling=(0.25, 0.5), alone=True))
    assert [path.name for path in paths] == ["north-coupling-0.25.coreg", "north-coupling-0.5.coreg", "alone.coreg"]
    assert {load_model(path).run for path in paths} == {"run-2"}
    kept = names(tmp_path, "*-run-run-1.coreg")
    assert kept == [f"{path.stem}-run-run-1.coreg" for path in sorted(paths)]
    assert {load_model(tmp_path / name).run for name in kept} == {"run-1"}
    assert len(notes) == 3


def test_the_local_model_stands_beside_the_joined_one_unless_a_path_was_given(models):
    paths, _ = written(models, result(alone=True))
    assert [path.name for path in paths] == ["north.coreg", "north-local.coreg"]
    assert slope(paths[1]) == -1.0


def test_of_a_path_the_site_keeps_what_its_own_labels_choose_and_the_notes_say_why(models):
    choice = PathChoice(1, (np.array([3.0, 3.0]), np.array([1.0, 1.0])), np.array([2.0, 2.0]))
    chosen = dataclasses.replace(result(coupling=(0.0, 0.5)), couplings=(0.0, 0.5), choice=choice)
    paths, notes = written(models, chosen)
    assert [path.name for path in paths] == ["north.coreg", "north-coupling-0.coreg", "north-coupling-0.5.coreg"]
    assert load_model(paths[0]).coupling == 0.5
    assert slope(paths[0]) == slope(paths[2])
    assert "coupling 0.5 has the least error" in notes[0]
    assert "0: 3, 0.5: 1" in notes[0], "each member's left-out error"
    assert "With 2 labels this can be chance" in notes[1]
    table = [next(float(word) for word in line.split() if word.replace(".", "").isdigit()) for line in notes[4:6]]
    assert table == [3.0, 2.0], "what is reported is nested"
    local = dataclasses.replace(chosen, choice=dataclasses.replace(choice, chosen=0))
    _, notes = written(models, local)
    assert ("coupling 0 has the least error" in notes[0], len(notes)) == (True, 5)
    assert notes[1].startswith("Your labels chose λ = 0; both files are equal")
    assert slope(paths[0]) == slope(paths[1])


def test_a_run_without_models_leaves_the_earlier_one(models, tmp_path):
    written(models, result("run-1"))
    before = (tmp_path / "north.coreg").read_bytes()
    ended = dataclasses.replace(result("run-2"), outcome=Outcome.STALLED, solutions=())
    for each in (ended, dataclasses.replace(ended, plan=None)):
        assert written(models, each) == ((), [])
    assert (names(tmp_path), (tmp_path / "north.coreg").read_bytes()) == (["north.coreg"], before)


def test_a_file_that_is_no_model_or_a_damaged_one_is_refused_before_the_run(models, tmp_path):
    check_output(models.output)
    check_output(None)
    written(models, result())
    check_output(models.output)  # a model is not in the way
    path = tmp_path / "north.coreg"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(UsageError, match="The model would overwrite it"):
        check_output(models.output)
    notes = write(tmp_path, "not to be lost", "notes.txt")
    with pytest.raises(UsageError, match=r"notes\.txt.*The model would overwrite it. Move it away"):
        check_output(notes)
    assert notes.read_text() == "not to be lost"
    with pytest.raises(UsageError, match="no such folder for the model"):
        check_output(tmp_path / "none" / "m.coreg")
    with pytest.raises(UsageError, match="Name a file for the model"):
        check_output(tmp_path)


def test_a_disk_without_room_is_found_before_the_run_and_a_lost_write_says_how_to_go_on(models, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(UsageError, match=r"the model cannot be written there \(No space left on device\)"):
            check_output(models.output)
    before = names(tmp_path)
    check_output(models.output)
    assert names(tmp_path) == before, "the trial leaves nothing"
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="The model is not lost: start the agent again, with another --output"):
        written(models, result())


def test_a_file_in_the_way_of_a_path_of_couplings_does_not_cost_the_run(models, tmp_path):
    """The couplings are known once the plan came, so these names cannot be checked before joining."""
    other = write(tmp_path, "not a model, and not to be lost", "north-coupling-0.25.coreg")
    paths, [note] = written(models, result(coupling=(0.25, 0.5)))
    assert [(load_model(path).run, load_model(path).coupling) for path in paths] == [("run-1", 0.25), ("run-1", 0.5)]
    assert other.read_text() == "not a model, and not to be lost"
    assert note.endswith(f"is not a model of coreg and is not changed. The model is saved as {paths[0]}")


# --- the additive objective ---------------------------------------------------------------------------------------


def test_an_additive_run_leaves_the_joined_model_and_the_local_one_with_its_findings(tmp_path):
    run = trained(tmp_path)
    result = dataclasses.replace(run.results["a"], findings=("a finding of the run",))
    paths, notes = written(run.models("a"), result)
    assert paths == (tmp_path / "a.model", tmp_path / "a-local.model")
    joined, local = map(load_model, paths)
    assert (joined.objective, joined.plan["objective"]["name"], joined.coupling) == ("additive", "additive", None)
    assert (joined.found["recommended"], joined.found["labels"], local.found) == ("score", 60, None)
    assert notes == ["a finding of the run", *findings.told(joined.found, "y")]
    raw = paths[0].read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    assert "rows of the site's own data" in header["warning"]
    paths[0].write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(BadData, match="damaged"):
        load_model(paths[0])
    [alone], _ = run.write("c")
    assert alone == tmp_path / "c.model", "two labels make no local model"


def test_the_score_of_an_additive_run_is_that_of_the_estimator_whichever_sites_have_a_record(tmp_path):
    """A site's constant, and the sum of the parts of the sites that are present."""
    run = trained(tmp_path)
    rows = {site: read_table(tmp_path / f"{site}-judged.csv") for site in SITES}
    order = {site: np.argsort(rows[site].ids("id")) for site in SITES}
    features = {s: run.prepared[s].preprocessing.transform(rows[s])[order[s]] for s in SITES}
    models = {site: load_model(run.write(site)[0][0]) for site in SITES}
    batches = {s: batch_of(models[s], {"": inputs(tmp_path / f"{s}-judged.csv", None)}, b"salt")[0] for s in SITES}
    assert {(each.name, each.sites, each.trained) for each in batches.values()} == {("these sums", SITES, "additive")}
    known = [at.prepared(features[site]) for site, at in zip(SITES, run.fitted.sites, strict=True)]
    errors, y = {}, rows["a"].numbers("y")[order["a"]]
    for present in ([0, 1, 2], [1, 2], [1]):
        total = sum(batches[SITES[v]].part(~batches[SITES[v]].missing, present) for v in present)
        for v, site in enumerate(SITES):
            score = run.fitted.score([each if u in present else None for u, each in enumerate(known)], v)
            np.testing.assert_allclose(batches[site].intercept + total, score, rtol=1e-9)
            unknown = np.sqrt(ScoreWeights.of(run.fitted.fit).missing_variance(present))
            assert batches[site].unknown(present) == pytest.approx(unknown)
        errors[len(present)] = np.std(y - total) / np.std(y)
    assert errors[3] < 0.3 < errors[2] < errors[1]


def test_a_linear_training_reports_its_coefficients_in_the_columns_own_units(tmp_path):
    """A change of the score by one unit of a column is its coefficient."""
    made = trained(tmp_path, (60, 60, 60), kernel="linear")
    (joined, *_), notes = made.write("a")
    found = load_model(joined).found
    table = read_table(made.folder / "a-judged.csv")
    model, known = made.results["a"].additive, made.prepared["a"].preprocessing
    for j, row in enumerate(found["coefficients"]):
        assert row["column"] == "uv"[j]
        moved = known.transform(table)
        before = model.part(model.phi(moved), range(3))
        moved[:, j] += 0.01 / known.columns[j].scale
        change = (model.part(model.phi(moved), range(3)) - before) / 0.01
        assert np.median(change) == pytest.approx(row["coefficient"], rel=1e-6)
        assert 0 < row["se"] < 1
    assert 0 < found["r2"] < 1
    text = "\n".join(notes)
    assert "y for one unit of each column" in text
    assert re.search(r"^u +-?[\d.e-]+ ± [\d.e-]+ +-?[\d.e-]+ to -?[\d.e-]+", text, re.MULTILINE)
    assert f"R² {found['r2']:.2f}" in text
    assert "coefficients" not in load_model(trained(tmp_path).write("a")[0][0]).found
