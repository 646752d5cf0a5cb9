"""A site's results on its disk: a folder for each run, another attempt in its place, retention, the
choice among models.
"""

import dataclasses
import json
import re
import stat
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pytest
from agent_files import agent, inputs, prepared, write
from numpy.testing import assert_allclose, assert_array_equal
from test_data_sets import TABLE
from trained_sites import SITES

import coreg_federation as coreg
from coreg_core.additive.missing_features import ScoreWeights
from coreg_core.agreement.left_out import FoldErrors, PathChoice
from coreg_core.agreement.views import KernelExpansion, Solution
from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.kernels import Linear
from coreg_core.messages import Proposal
from coreg_core.objectives.agreement import Agreement
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.terms import Membership, Privacy
from coreg_sim.simulate import SharedFold, SimulatedSite
from site_agent.data.aligned_ids import SharedIds
from site_agent.data.data_sets import DataSets
from site_agent.data.tables import read_table
from site_agent.machine.results import AgreementResult
from site_agent.models import report
from site_agent.models.batch import batch_of
from site_agent.models.file import load_model
from site_agent.models.store import ModelStore, RunFacts


def plan(run, study="waits", **changes):
    members = Membership(("north", "south"), 2)
    secrets = Privacy("plaintext")
    return Plan(run, "clinics", members, privacy=secrets, study=study, data="patients", **changes)


class Stored(ModelStore):
    """A store of results as a site ends runs of which nothing but its own solution is known."""

    def put(self, run, outcome=Outcome.CONVERGED, name="these sums"):
        table = write(self.folder.parent, TABLE, "local.csv")
        prepared, _ = DataSets({"patients": inputs(table)}, b"salt").get("patients")
        site = SimulatedSite("north", prepared.data, SharedFold())
        assert site.handle(Proposal(run, 0, plan(run)))
        alone = site.participant.computation.view.solve(np.zeros(2), 0.0)
        result = AgreementResult(
            outcome, "", name=name, sites=("north", "south"), solutions=(alone,)
        )
        return self.put_models(plan(run), result, prepared, RunFacts("y", "id"), lambda text: None)


@pytest.fixture
def store(tmp_path):
    return Stored("north", tmp_path / "models")


def runs(store):
    return [m["run"] for m in store.manifests()]


def test_every_run_has_its_folder_and_the_newest_that_converged_is_used(store):
    with pytest.raises(StorageError, match="there is no model yet"):
        store.recommended()
    for run, outcome in (
        ("r1", Outcome.MAX_ROUNDS),
        ("r2", Outcome.CONVERGED),
        ("r3", Outcome.STAGNATED),
    ):
        [model] = store.put(run, outcome)
        assert load_model(model).run == run
        assert store.model_of(run).run == run
        assert store.recommended() == (store.folder / "waits" / min(run, "r2") / "model.coreg")
    study = store.folder / "waits"
    assert sorted(p.name for p in study.iterdir()) == ["r1", "r2", "r3"]
    assert stat.S_IMODE((study / "r1").stat().st_mode) == 0o700
    assert runs(store) == ["r1", "r2", "r3"]
    assert [m["stop"] for m in store.manifests()] == ["MAX_ROUNDS", "CONVERGED", "STAGNATED"]
    with pytest.raises(BadData, match="no model of run r9"):
        store.model_of("r9")


def test_another_attempt_takes_the_place_of_the_earlier_one_whole(store):
    """Some site missed the end of the earlier one, so the run was computed again."""
    study = store.folder / "waits"
    [first] = store.put("r1")
    (study / "r1" / "model-local.coreg").write_bytes(b"of the earlier attempt")
    (
        study / ".r1.earlier"
    ).mkdir()  # an agent was killed while it replaced the folder, or wrote one
    (study / ".r1.partial").mkdir()
    (study / ".r1.partial" / "model.coreg").write_bytes(b"half")
    assert runs(store) == ["r1"]
    assert store.put("r1", name="other sums") == (first,)
    assert load_model(first).name == "other sums"
    assert load_model(first).sites == ("north", "south")
    assert sorted(p.name for p in study.iterdir()) == ["r1"]
    assert sorted(p.name for p in (study / "r1").iterdir()) == ["manifest.json", "model.coreg"]
    (study / "r1" / "manifest.json").write_text("{")
    with pytest.raises(StorageError, match=r"manifest\.json: cannot be read"):
        store.manifests()


def test_a_command_lists_the_models(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in ("r2", "r3"):
        store.put(run)
    listed = [json.loads(line) for line in agent("models", "--json").stdout.splitlines()]
    assert [m["run"] for m in listed] == ["r2", "r3"]
    shown = agent("models").stdout.splitlines()
    assert [line.split()[:3] for line in shown[::2]] == [
        ["waits", m["run"], m["at"]] for m in listed
    ]
    assert shown[1].strip() == "models/waits/r2/model.coreg"


def test_a_disk_that_takes_no_model_is_found_before_the_run_and_a_lost_write_says_how_to_go_on(
    store, monkeypatch
):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    assert store.check() > 0
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(
            StorageError, match=r"models cannot be written there \(No space left on device\)"
        ):
            store.check()
    write(store.folder.parent, "no folder", "models")
    with pytest.raises(StorageError, match=r"models cannot be written there \(Not a directory\)"):
        store.check()
    with pytest.raises(StorageError, match="A result is not lost: start the agent again"):
        store.put("r1")


@pytest.mark.parametrize("name", ["../out", "a/b", ".hidden", "", "x" * 64])
def test_a_coordinator_names_no_folder_elsewhere(store, name):
    with pytest.raises(UsageError):
        store.folder_of(plan(name))
    if name:
        with pytest.raises(UsageError):
            store.folder_of(plan("r1", study=name))


def test_with_an_alignment_the_shared_records_are_scored_and_ids_stay_as_written(store, tmp_path):
    """Each site has other records too, and its own way to write an id."""
    [path] = store.put("r1")
    aligned = SharedIds("folded", ("n1", "n3"), "a1")
    batches = {}
    for site, rows in (("here", "N3,0,1\nn2,5,5\nN1,1,2\n"), ("there", "n1,1,2\nn3,0,1\n")):
        table = inputs(write(tmp_path, f"id,a,b\n{rows}", f"{site}.csv"), None)
        batches[site] = batch_of(load_model(path), table, b"salt", aligned)
    (here, scored), (there, _) = batches.values()
    assert here.ids_digest == there.ids_digest
    assert_array_equal(here.features, there.features)
    assert scored.ids == ("N1", "N3")
    write(tmp_path, "id,a,b\nn1,1,2\n", "there.csv")
    with pytest.raises(BadData, match="1 of the 2 ids that the sites share are not in 'id'"):
        batch_of(load_model(path), table, b"salt", aligned)


# --- the files of both objectives -----------------------------------------------------------------


def agreement(store, coupling=(0.5,), *, alone=False, **changes):
    """The files and notes of a result whose models predict 1 and 2 times the feature, and the local
    one -1 times.
    """
    made = plan("r1", objective=Agreement(coupling=coupling))
    factors = (-1.0, 1.0, 2.0)
    local, *joined = (
        Solution(KernelExpansion(Linear(), np.eye(1), np.array([c])), np.zeros(1), 0.0)
        for c in factors
    )
    joined = tuple(joined[: len(coupling)])
    if not alone:
        local = None
    result = AgreementResult(Outcome.CONVERGED, "", solutions=joined, alone=local)
    rows = prepared(write(store.folder.parent, "id,a,y\n1,1.5,1\n2,2,2\n3,4,\n"))
    notes = []
    return store.put_models(
        made, dataclasses.replace(result, **changes), rows, RunFacts("y", "id"), notes.append
    ), notes


def slope(path):
    return load_model(path).function.coef.tolist()[0]


def test_of_a_path_the_site_keeps_what_its_own_labels_choose_and_the_notes_say_why(store):
    three = np.array([3.0, 3.0])
    members = (three, three / 3.0)
    choice = PathChoice(1, members, FoldErrors(three - 1.0, members, 3.0 * three))
    paths, notes = agreement(store, (0.0, 0.5), couplings=(0.0, 0.5), choice=choice)
    assert [path.name for path in paths] == [
        "model.coreg",
        "model-coupling-0.coreg",
        "model-coupling-0.5.coreg",
    ]
    assert load_model(paths[0]).coupling == 0.5
    assert slope(paths[0]) == slope(paths[2])
    assert "0: 3, 0.5: 1" in notes[0], "each member's left-out error"
    table = [
        next(float(word) for word in line.split() if word.replace(".", "").isdigit())
        for line in notes[4:7]
    ]
    assert table == [9.0, 3.0, 2.0], "mean, local, joined: all on the same folds"
    local = dataclasses.replace(choice, chosen=0)
    paths, notes = agreement(store, (0.0, 0.5), couplings=(0.0, 0.5), choice=local)
    assert notes[1].startswith("Your labels chose λ = 0; both files are equal")
    assert slope(paths[0]) == slope(paths[1])
    paths, notes = agreement(store, (0.25, 0.5), alone=True)
    assert [path.name for path in paths] == [
        "model-coupling-0.25.coreg",
        "model-coupling-0.5.coreg",
        "local.coreg",
    ]
    assert list(map(slope, paths)) == [1.0, 2.0, -1.0]
    assert notes == []
    close, _ = agreement(store, (0.1, 0.1 + 1e-9))
    assert len({path.name for path in close}) == 2, "equal to six digits"


def test_an_additive_run_leaves_the_joined_model_and_the_local_one_with_its_findings(federations):
    run = federations["gaussian"]
    paths, notes = run.write("a", findings=("a finding of the run",))
    assert [path.name for path in paths] == ["model.coreg", "local.coreg"]
    joined, local = map(load_model, paths)
    assert joined.objective == "additive"
    assert joined.plan["objective"]["name"] == "additive"
    assert joined.coupling is None
    assert joined.findings.recommended == "score"
    assert joined.findings.labels == 60
    assert local.findings is None
    assert notes == ["a finding of the run", *report.sentences(joined.findings, "y")]
    raw = paths[0].read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"]
    assert "rows of the site's own data" in header["warning"]
    paths[0].write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(BadData, match="damaged"):
        load_model(paths[0])
    [alone], _ = run.write("c")
    assert alone.name == "model.coreg", "two labels make no local model"


@dataclass
class Scoring:
    """Judged rows of three sites that trained together, in the order of their ids."""

    run: Any
    features: list  # of each site's columns
    models: list
    batches: list
    scored: list
    y: np.ndarray

    def total(self, present):
        """The sum of the parts of the sites that are present."""
        parts = [self.batches[v].part(~self.batches[v].missing, present) for v in present]
        return sum(parts)


@pytest.fixture(scope="module")
def scoring(federations):
    run = federations["gaussian"]
    given = Scoring(run, [], [], [], [], np.zeros(0))
    for site, trained_site in zip(SITES, run.fitted.sites, strict=True):
        path = run.folder / f"{site}-judged.csv"
        rows = read_table(path)
        order = np.argsort(rows.ids("id"))
        columns = run.prepared[site].preprocessing.transform(rows)[order]
        model = load_model(run.write(site)[0][0])
        batch, scored = batch_of(model, inputs(path, None), b"salt")
        given.features.append(trained_site.model.phi(columns))
        given.models.append(model)
        given.batches.append(batch)
        given.scored.append(scored)
        given.y = rows.numbers("y")[order]
    return given


PRESENT = pytest.mark.parametrize("present", [[0, 1, 2], [1, 2], [1]])


def test_the_local_predictions_of_a_batch_are_those_of_the_model(scoring):
    rows = read_table(scoring.run.folder / "a-judged.csv")
    expected = scoring.models[0].local_predictions(rows)
    assert_array_equal(scoring.scored[0].local, expected[np.argsort(rows.ids("id"))])


def test_batches_of_one_run_name_it(scoring):
    for batch in scoring.batches:
        assert batch.name == "these sums"
        assert batch.sites == SITES
        assert batch.trained == "additive"


def test_the_intercept_of_a_batch_is_the_joined_model_at_the_mean(scoring):
    fitted = scoring.run.fitted
    for batch, site in zip(scoring.batches, fitted.sites, strict=True):
        mean_row = np.zeros_like(site.own.B[:1])
        [at_the_mean] = site.own.predict(fitted.fits[0], mean_row)
        assert batch.intercept == pytest.approx(at_the_mean)


@PRESENT
def test_a_score_is_that_of_the_estimator_whichever_sites_have_a_record(scoring, present):
    known = [X if v in present else None for v, X in enumerate(scoring.features)]
    total = scoring.total(present)
    for v, batch in enumerate(scoring.batches):
        expected = scoring.run.fitted.score(known, v)
        assert_allclose(batch.intercept + total, expected, rtol=1e-9)


@PRESENT
def test_the_deviation_of_a_batch_is_that_of_the_missing_sites(scoring, present):
    weights = ScoreWeights.of(scoring.run.fitted.fits[0])
    expected = np.sqrt(weights.missing_variance(present))
    for batch in scoring.batches:
        assert batch.unknown(present) == pytest.approx(expected)


def test_a_score_is_the_better_the_more_sites_have_a_record(scoring):
    def error(present):
        residuals = scoring.y - scoring.batches[0].intercept - scoring.total(present)
        return np.sqrt(np.mean(residuals**2)) / np.std(scoring.y)

    assert error([0, 1, 2]) < 0.3
    assert error([1, 2]) > 0.3
    assert error([1]) > error([1, 2])


def test_a_row_without_a_cell_is_missing_and_changes_no_other(scoring):
    folder = scoring.run.folder
    table = pl.read_csv(folder / "a-judged.csv")
    first = int(np.argsort(read_table(folder / "a-judged.csv").ids("id"))[0])
    others = pl.int_range(pl.len()) != first
    cells = pl.when(others).then(pl.col("u", "v")).name.keep()
    table.with_columns(cells).write_csv(folder / "a-blank.csv")

    batch, without = batch_of(scoring.models[0], inputs(folder / "a-blank.csv", None), b"salt")

    is_first = np.arange(len(batch.ids)) == 0
    assert_array_equal(batch.missing, is_first)
    assert_array_equal(np.isnan(without.local), is_first)
    assert_array_equal(~batch.features.any(axis=1), is_first)
    assert_allclose(without.local[1:], scoring.scored[0].local[1:], rtol=1e-12)


@pytest.fixture
def linear(federations):
    """A linear training: its run, the joined model's file, and the notes."""
    run = federations["linear"]
    (joined, *_), notes = run.write("a")
    return run, joined, notes


@pytest.mark.parametrize("column", [0, 1])
def test_a_change_of_the_score_by_one_unit_of_a_column_is_its_coefficient(linear, column):
    run, joined, _ = linear
    row = load_model(joined).findings.coefficients[column]
    model = run.results["a"].model
    preprocessing = run.prepared["a"].preprocessing
    features = preprocessing.transform(read_table(run.folder / "a-judged.csv"))
    before = model.part(model.phi(features), range(3))

    features[:, column] += 0.01 / preprocessing.columns[column].scale
    after = model.part(model.phi(features), range(3))

    assert row["column"] == "uv"[column]
    assert np.median((after - before) / 0.01) == pytest.approx(row["coefficient"], rel=1e-6)
    assert 0 < row["se"] < 1


def test_a_linear_training_reports_its_coefficients(linear):
    _, joined, notes = linear
    report_of_training = load_model(joined).findings
    assert 0 < report_of_training.r2 < 1
    frame = coreg.load_model(joined).coefficients
    assert frame.to_dicts() == report_of_training.coefficients
    number = r"-?[\d.e-]+"
    line = rf"^u +{number} ± [\d.e-]+ +{number} to {number}"
    assert re.search(line, "\n".join(notes), re.MULTILINE)


def test_contributions_add_up_to_the_prediction_less_that_at_the_means(linear):
    run, joined, _ = linear
    frame = pl.read_csv(run.folder / "a-judged.csv")
    model = coreg.load_model(joined)
    contributions = model.contributions(frame).sum_horizontal().to_numpy()
    at_the_means = model.predict(frame) - contributions
    assert_allclose(at_the_means, at_the_means[0], rtol=1e-9)


def test_a_training_that_is_not_linear_has_no_coefficients(federations):
    paths, _ = federations["gaussian"].write("a")
    assert load_model(paths[0]).findings.coefficients is None
