"""A site's results on its disk: a folder for each run, another attempt in its place, retention, the
choice among models.
"""

import dataclasses
import json
import re
import stat

import numpy as np
import polars as pl
import pytest
from agent_files import agent, inputs, prepared, write
from numpy.testing import assert_array_equal
from test_data_sets import TABLE
from trained_sites import SITES

import coreg_federation as coreg
from coreg_core.additive.moments import ScoreWeights
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
    np.testing.assert_array_equal(here.features, there.features)
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
    result = AgreementResult(
        Outcome.CONVERGED, "", solutions=joined, alone=local if alone else None
    )
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


def test_the_score_of_an_additive_run_is_that_of_the_estimator_whichever_sites_have_a_record(
    federations,
):
    """A site's constant, and the sum of the parts of the sites that are present."""
    run = federations["gaussian"]
    tmp_path = federations["gaussian"].folder
    rows = {site: read_table(tmp_path / f"{site}-judged.csv") for site in SITES}
    order = {site: np.argsort(rows[site].ids("id")) for site in SITES}
    features = {s: run.prepared[s].preprocessing.transform(rows[s])[order[s]] for s in SITES}
    models = {site: load_model(run.write(site)[0][0]) for site in SITES}
    known = {
        s: batch_of(models[s], inputs(tmp_path / f"{s}-judged.csv", None), b"salt") for s in SITES
    }
    batches = {s: batch for s, (batch, _) in known.items()}
    scored = known["a"][1]
    assert_array_equal(scored.local, models["a"].local_predictions(rows["a"])[order["a"]])
    assert {(each.name, each.sites, each.trained) for each in batches.values()} == {
        ("these sums", SITES, "additive")
    }
    [fit] = run.fitted.fits
    phi = [at.model.phi(features[site]) for site, at in zip(SITES, run.fitted.sites, strict=True)]
    errors = {}
    y = rows["a"].numbers("y")[order["a"]]
    at_mean = [at.own.predict(fit, 0.0 * at.own.B[:1])[0] for at in run.fitted.sites]
    np.testing.assert_allclose(
        [batches[site].intercept for site in SITES], at_mean, err_msg="of the joined model too"
    )
    for present in ([0, 1, 2], [1, 2], [1]):
        total = sum(batches[SITES[v]].part(~batches[SITES[v]].missing, present) for v in present)
        for v, site in enumerate(SITES):
            there = [of_site if u in present else None for u, of_site in enumerate(phi)]
            score = run.fitted.score(there, v)
            np.testing.assert_allclose(batches[site].intercept + total, score, rtol=1e-9)
            unknown = np.sqrt(ScoreWeights.of(fit).missing_variance(present))
            assert batches[site].unknown(present) == pytest.approx(unknown)
        errors[len(present)] = np.sqrt(np.mean((y - batches["a"].intercept - total) ** 2)) / np.std(
            y
        )
    assert errors[3] < 0.3 < errors[2] < errors[1]
    blank = pl.when(pl.int_range(pl.len()) != order["a"][0]).then(pl.col("u", "v")).name.keep()
    pl.read_csv(tmp_path / "a-judged.csv").with_columns(blank).write_csv(tmp_path / "a-blank.csv")
    batch, without = batch_of(models["a"], inputs(tmp_path / "a-blank.csv", None), b"salt")
    unknown = np.arange(len(batch.ids)) == 0
    assert_array_equal(
        [batch.missing, np.isnan(without.local), ~batch.features.any(axis=1)], [unknown] * 3
    )
    np.testing.assert_allclose(without.local[1:], scored.local[1:], rtol=1e-12)


def test_a_linear_training_reports_its_coefficients_in_the_columns_own_units(federations):
    """A change of the score by one unit of a column is its coefficient."""
    made = federations["linear"]
    (joined, *_), notes = made.write("a")
    found = load_model(joined).findings
    table = read_table(made.folder / "a-judged.csv")
    model = made.results["a"].model
    known = made.prepared["a"].preprocessing
    for j, row in enumerate(found.coefficients):
        assert row["column"] == "uv"[j]
        moved = known.transform(table)
        before = model.part(model.phi(moved), range(3))
        moved[:, j] += 0.01 / known.columns[j].scale
        change = (model.part(model.phi(moved), range(3)) - before) / 0.01
        assert np.median(change) == pytest.approx(row["coefficient"], rel=1e-6)
        assert 0 < row["se"] < 1
    assert 0 < found.r2 < 1
    assert coreg.load_model(joined).coefficients.to_dicts() == found.coefficients
    frame = pl.read_csv(made.folder / "a-judged.csv")
    parts = coreg.load_model(joined).contributions(frame)
    moved = coreg.load_model(joined).predict(frame) - parts.sum_horizontal().to_numpy()
    np.testing.assert_allclose(moved, moved[0], rtol=1e-9, err_msg="the prediction at the means")
    assert re.search(
        r"^u +-?[\d.e-]+ ± [\d.e-]+ +-?[\d.e-]+ to -?[\d.e-]+", "\n".join(notes), re.MULTILINE
    )
    assert load_model(federations["gaussian"].write("a")[0][0]).findings.coefficients is None
