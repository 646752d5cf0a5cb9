"""The models of a serving agent: a folder per run, a link to the one in use, another attempt in its place, retention, scores."""

import json
import stat

import numpy as np
import pytest
from agent_files import agent, inputs, write
from test_data_sets import TABLE

from coreg_core.errors import BadData, StorageError, UsageError
from coreg_core.objectives.scoring import Scoring
from coreg_core.objectives.setting import Membership, Privacy
from coreg_core.protocol.messages import Proposal
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.consent.objections import Consent
from site_agent.data.prepare import DataSets
from site_agent.data.shared_set import SharedIds
from site_agent.data.tables import read_table
from site_agent.machine.job import SiteResult
from site_agent.machine.site import Site
from site_agent.models.batch import Scored, batch_of
from site_agent.models.file import load_model
from site_agent.models.store import ModelStore, OneRun


def plan(run, study="waits", **changes):
    members, secrets = Membership(("north", "south"), 2), Privacy("plaintext")
    return Plan(run, "clinics", members, privacy=secrets, study=study, data="patients", **changes)


class Stored(ModelStore):
    """A store of results as a site ends runs of which nothing but its own solution is known."""

    def put(self, run, outcome=Outcome.CONVERGED, name="these sums"):
        table = write(self.folder.parent, TABLE, "local.csv")
        prepared, _ = DataSets({"patients": inputs(table)}, b"salt").get("patients")
        site = Site("north", prepared.data, Consent.simulated())
        assert site.handle(Proposal(run, 0, plan(run)))
        alone = site.view.solve(np.zeros(2), 0.0)
        result = SiteResult(outcome, "", plan(run), (alone,), name=name, sites=("north", "south"))
        return self.put_models(plan(run), result, prepared, "y", lambda text: None)


@pytest.fixture
def store(tmp_path):
    return Stored("north", tmp_path / "models")


def runs(store):
    return [m["run"] for m in store.manifests()]


def test_every_run_has_its_folder_and_the_link_names_the_last_that_converged(store):
    for run, outcome in (("r1", Outcome.MAX_ROUNDS), ("r2", Outcome.CONVERGED), ("r3", Outcome.STAGNATED)):
        [model] = store.put(run, outcome)
        assert (load_model(model).run, store.model_of(run).run) == (run, run)
    study = store.folder / "waits"
    assert sorted(p.name for p in study.iterdir()) == ["current", "r1", "r2", "r3"]
    assert (study / "current").resolve() == (study / "r2").resolve()
    assert stat.S_IMODE((study / "r1").stat().st_mode) == 0o700
    assert [(m["run"], m["stop"], m["current"]) for m in store.manifests()] == [
        ("r1", "MAX_ROUNDS", False), ("r2", "CONVERGED", True), ("r3", "STAGNATED", False)
    ]  # fmt: skip
    with pytest.raises(BadData, match="no model of run r9"):
        store.model_of("r9")


def test_another_attempt_takes_the_place_of_the_earlier_one_whole(store):
    """Some site missed the end of the earlier one, so the run was computed again."""
    study = store.folder / "waits"
    [first] = store.put("r1")
    (study / "r1" / "model-local.coreg").write_bytes(b"of the earlier attempt")
    (study / ".r1.earlier").mkdir()  # an agent was killed while it replaced the folder
    assert store.put("r1", name="other sums") == (first,)
    assert (load_model(first).name, load_model(first).sites) == ("other sums", ("north", "south"))
    assert sorted(p.name for p in study.iterdir()) == ["current", "r1"]
    assert sorted(p.name for p in (study / "r1").iterdir()) == ["manifest.json", "model.coreg"]
    assert [(m["run"], m["current"]) for m in store.manifests()] == [("r1", True)]


def test_a_killed_agents_partial_folder_is_no_run(store):
    study = store.folder / "waits"
    store.put("r1")
    (study / ".r2.partial").mkdir()
    (study / ".r2.partial" / "model.coreg").write_bytes(b"half")
    assert runs(store) == ["r1"]
    store.put("r2")
    assert not (study / ".r2.partial").exists()
    (study / "r2" / "manifest.json").write_text("{")
    with pytest.raises(StorageError, match=r"manifest\.json: cannot be read"):
        store.manifests()


def test_old_models_go_by_retention_and_by_the_command(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keeping = Stored("north", store.folder, keep=2)
    for number in range(4):
        keeping.put(f"r{number}")
    assert runs(store) == ["r2", "r3"]
    config = ("--config", write(tmp_path, 'coordinator = "c:1"\n[data.p]\ntable = "t.csv"\nid = "id"\n', "agent.toml"))
    listed = [json.loads(line) for line in agent("models", "list", *config, "--json").stdout.splitlines()]
    assert [(m["run"], m["current"]) for m in listed] == [("r2", False), ("r3", True)]
    shown = agent("models", "list", *config).stdout.splitlines()
    assert [line.split()[:3] for line in shown[::2]] == [["waits", "r2", listed[0]["at"]], ["*", "waits", "r3"]]
    assert agent("models", "prune", "waits", *config, "--keep", 1).stdout == "waits: 1 runs removed (r2)\n"
    assert runs(store) == ["r3"]
    keeping.put("r4", Outcome.STALLED)
    assert agent("models", "prune", "waits", *config, "--keep", 1).stdout == (
        "waits: 0 runs removed. Kept: the current one and the latest 1 beside it\n"
    )
    assert [(m["run"], m["current"]) for m in store.manifests()] == [("r3", True), ("r4", False)], (
        "the current run stays"
    )
    agent("models", "prune", "waits", *config)
    assert list(store.folder.iterdir()) == []
    with pytest.raises(UsageError, match="there are no models of study 'waits'"):
        agent("models", "prune", "waits", *config)


@pytest.mark.parametrize("name", ["../out", "a/b", ".hidden", "", "x" * 64])
def test_a_coordinator_names_no_folder_elsewhere(store, name):
    with pytest.raises(UsageError):
        store.folder_of(plan(name))
    if name:
        with pytest.raises(UsageError):
            store.folder_of(plan("r1", study=name))


def test_a_scoring_of_several_batches_is_one_vector_and_a_file_for_each(store, tmp_path):
    [path] = store.put("r1")
    model = load_model(path)
    write(tmp_path, "id,a,b\nn2,1,2\nn1,0,1\n", "monday.csv")
    write(tmp_path, "id,a,b\nn1,2,2\nn3,,\n", "tuesday.csv")
    tables = {day: inputs(tmp_path / f"{day}.csv", None) for day in ("monday", "tuesday")}
    batch, scored = batch_of(model, tables, b"salt")
    assert scored.ids == {"monday": ("n1", "n2"), "tuesday": ("n1", "n3")}
    assert batch.missing.tolist() == [False, False, False, True]
    assert any("no record of 1 instances" in note and "n3 first" in note for note in scored.notes)
    expected = np.concatenate([model.phi(read_table(tmp_path / f"{d}.csv").rows(r)) for d, r in
                               (("monday", [1, 0]), ("tuesday", [0]))])  # fmt: skip
    np.testing.assert_array_equal(batch.features[:3], expected)
    np.testing.assert_array_equal(batch.part(~batch.missing, [0, 1]), expected[:, 0] / 2)
    assert batch.ids_digest != batch_of(model, dict(reversed(tables.items())), b"salt")[0].ids_digest
    assert batch.ids_digest != batch_of(model, {"monday": tables["monday"]}, b"salt")[0].ids_digest

    scoring = plan("s1", objective=Scoring("r1", "agreement"))
    both, present = ("north", "south"), (("north", "south"),) * 3 + (("south",),)
    result = SiteResult(
        Outcome.CONVERGED,
        "",
        scoring,
        scores=np.array([0.0, 1.0, 2.0, np.nan]),
        present=present,
        missing=np.full(4, np.nan),
        sites=both,
    )
    written = store.put_scores(scoring, result, scored)
    assert [p.relative_to(store.folder).as_posix() for p in written] == ["waits/s1/monday.csv", "waits/s1/tuesday.csv"]
    beside = OneRun("scoring", tmp_path / "scores.csv", model=model).put_scores(scoring, result, scored)
    assert [p.name for p in beside] == ["scores-monday.csv", "scores-tuesday.csv"]
    for paths in (written, beside):
        assert [read_table(p).ids("id") for p in paths] == [["n1", "n2"], ["n1", "n3"]]
        texts = [p.read_text().splitlines() for p in paths]
        assert texts == [["id,score,sites", *rows] for rows in (
            ["n1,0.0,north south", "n2,1.0,north south"], ["n1,2.0,north south", "n3,,south"]
        )]  # fmt: skip
        assert {stat.S_IMODE(p.stat().st_mode) for p in paths} == {0o600}
    assert runs(store) == ["r1", "s1"]
    one = OneRun("scoring", tmp_path / "one.csv", model=model)
    assert one.put_scores(scoring, result, Scored({"": ("n",) * 4}, {"": "id"}, ()))
    assert store.put_scores(scoring, SiteResult(Outcome.REFUSED, "", scoring), scored) == ()


def test_with_an_alignment_the_shared_records_are_scored_and_ids_stay_as_written(store, tmp_path):
    """Each site has other records too, and its own way to write an id."""
    [path] = store.put("r1")
    aligned, batches = SharedIds("folded", ("n1", "n3"), "a1"), {}
    for site, rows in (("here", "N3,0,1\nn2,5,5\nN1,1,2\n"), ("there", "n1,1,2\nn3,0,1\n")):
        table = inputs(write(tmp_path, f"id,a,b\n{rows}", f"{site}.csv"), None)
        batches[site] = batch_of(load_model(path), {"new": table}, b"salt", aligned)
    (here, scored), (there, _) = batches.values()
    assert here.ids_digest == there.ids_digest
    np.testing.assert_array_equal(here.features, there.features)
    assert scored.ids == {"new": ("N1", "N3")}
    write(tmp_path, "id,a,b\nn1,1,2\n", "there.csv")
    with pytest.raises(BadData, match="1 of the 2 ids that the sites share are not in 'id'"):
        batch_of(load_model(path), {"new": table}, b"salt", aligned)
