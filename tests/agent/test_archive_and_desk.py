"""What an agent that stays has on its disk: models by study and run, its operator's decisions, its data sets as they are now."""

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from coreg_core.errors import BadData, UsageError
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Membership, Plan, Privacy
from site_agent.cli import service
from site_agent.cli.app import app
from site_agent.config.agent_toml import read_service_settings
from site_agent.data.data_sets import DataSets
from site_agent.data.prepare import Inputs
from site_agent.machine.memory import SiteResult
from site_agent.machine.site import Site
from site_agent.models.file import load_model
from site_agent.models.store import Archive
from site_agent.service.state_dir import Decision, Desk

TABLE = "id,a,b,y\n" + "".join(f"p{i},{i % 3},{i * 0.5},{i + 0.25}\n" for i in range(6)) + "q1,1,2,\nq2,2,0.5,\n"


@pytest.fixture
def data_sets(tmp_path: Path) -> DataSets:
    (tmp_path / "local.csv").write_text(TABLE)
    return DataSets({"patients": Inputs(tmp_path / "local.csv", "y", "id")}, b"salt")


def plan(run: str, study: str = "waits") -> Plan:
    return Plan(
        run, "clinics", Membership(("north", "south"), 2), privacy=Privacy("clear"), study=study, data="patients"
    )


def result(plan: Plan, data_sets: DataSets, outcome: Outcome = Outcome.CONVERGED) -> SiteResult:
    """As a site ends a run of which nothing but its own solution is known."""
    site = Site("north", data_sets.get("patients")[0].data)
    assert site.handle(plan)
    assert site.view is not None
    alone = site.view.solve(np.zeros(2), 0.0)
    return SiteResult(outcome, "", plan, (alone,), None, 0.0, 1.0)


def put(archive: Archive, data_sets: DataSets, run: str, outcome: Outcome = Outcome.CONVERGED) -> tuple[Path, ...]:
    prepared, _ = data_sets.get("patients")
    return archive.put(plan(run), result(plan(run), data_sets, outcome), prepared, "y", lambda text: None)


def test_every_run_has_its_folder_and_the_link_names_the_last_that_converged(
    tmp_path: Path, data_sets: DataSets
) -> None:
    archive = Archive("north", tmp_path / "models")
    assert not archive.has(plan("r1"))
    for run, outcome in (("r1", Outcome.MAX_ROUNDS), ("r2", Outcome.CONVERGED), ("r3", Outcome.STAGNATED)):
        [model] = put(archive, data_sets, run, outcome)
        assert load_model(model).run == run
        assert archive.has(plan(run))
    study = tmp_path / "models" / "waits"
    assert sorted(p.name for p in study.iterdir()) == ["current", "r1", "r2", "r3"]
    assert (study / "current").resolve() == (study / "r2").resolve()
    assert stat.S_IMODE((study / "r1").stat().st_mode) == 0o700
    assert [(m["run"], m["stop"], m["current"]) for m in archive.manifests()] == [
        ("r1", "MAX_ROUNDS", False), ("r2", "CONVERGED", True), ("r3", "STAGNATED", False)
    ]  # fmt: skip


def test_nothing_is_written_over_and_what_a_kill_left_is_no_run(tmp_path: Path, data_sets: DataSets) -> None:
    archive = Archive("north", tmp_path / "models")
    [first] = put(archive, data_sets, "r1")
    before = first.read_bytes()
    partial = tmp_path / "models" / "waits" / ".r2.partial"
    partial.mkdir()
    (partial / "model.coreg").write_bytes(b"half")
    assert [m["run"] for m in archive.manifests()] == ["r1"]
    put(archive, data_sets, "r2")
    assert not partial.exists()
    put(archive, data_sets, "r1")  # fetched once more
    kept = tmp_path / "models" / "waits" / "r1.old-1" / "model.coreg"
    assert kept.read_bytes() == before
    first.unlink()
    assert not archive.has(plan("r1")), "it may be fetched again"


def test_retention(tmp_path: Path, data_sets: DataSets) -> None:
    archive = Archive("north", tmp_path / "models", keep=2)
    for number in range(4):
        put(archive, data_sets, f"r{number}")
    assert [m["run"] for m in archive.manifests()] == ["r2", "r3"]
    assert archive.forget("waits", keep=1) == ["r2"]
    assert archive.forget("waits", keep=0) == ["r3"]
    assert list((tmp_path / "models").iterdir()) == []
    with pytest.raises(UsageError, match="no models of a study 'waits'"):
        archive.forget("waits", keep=0)


@pytest.mark.parametrize("name", ["../out", "a/b", ".hidden", "", "x" * 64])
def test_a_coordinator_names_no_folder_elsewhere(tmp_path: Path, name: str) -> None:
    archive = Archive("north", tmp_path / "models")
    with pytest.raises(UsageError):
        archive.folder_of(plan(name))
    if name:
        with pytest.raises(UsageError):
            archive.folder_of(plan("r1", study=name))
    with pytest.raises(UsageError):
        Desk(tmp_path).ask(name, {})


def test_what_the_operator_says_is_found_by_an_agent_that_is_started_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "service")
    desk.open()
    for run in ("abc1", "abd2"):
        desk.ask(run, plan(run).to_dict())
    assert [entry["plan"]["run"] for entry in desk.pending()] == ["abc1", "abd2"]
    for beginning in ("ab", "x"):
        with pytest.raises(UsageError, match="waiting runs begin with"):
            desk.decide(beginning, Decision(True, ""))
    assert desk.decide("abc", Decision(False, "no consent")) == "abc1"
    again = Desk(tmp_path / "service")
    assert again.decision("abc1") == Decision(False, "no consent")
    assert again.decision("abd2") is None
    again.clear("abc1")
    assert (again.decision("abc1"), len(again.pending())) == (None, 1)
    again.over({"run": "abc1", "stop": "REFUSED"})
    with (tmp_path / "service" / "history.jsonl").open("a") as file:
        file.write('{"run": "torn')
    again.over({"run": "abd2", "stop": "CONVERGED"})
    assert [entry["run"] for entry in again.history()] == ["abc1", "abd2"]
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "service").rglob("*.json*")} == {0o600}


def test_a_data_set_is_read_again_when_its_file_changed_and_not_before(tmp_path: Path, data_sets: DataSets) -> None:
    first, read = data_sets.get("patients")
    assert read
    same, read = data_sets.get("patients")
    assert not read
    assert same is first
    (tmp_path / "new.csv").write_text(TABLE.replace("p5,2,2.5,5.25", "p5,2,2.5,7.25"))
    (tmp_path / "new.csv").replace(tmp_path / "local.csv")
    other, read = data_sets.get("patients")
    assert read
    assert other.data.y[5] == 7.25
    assert first.data.y[5] == 5.25, "a run that is under way keeps what it began with"
    (tmp_path / "local.csv").unlink()
    with pytest.raises(BadData, match="cannot be read"):
        data_sets.get("patients")


def test_which_data_set_a_plan_means(data_sets: DataSets) -> None:
    assert data_sets.choose("patients") == data_sets.choose("") == "patients"
    with pytest.raises(UsageError) as error:
        data_sets.choose("staff")
    assert "patients" not in str(error.value), "the coordinator hears it"
    inputs = data_sets.inputs("patients")
    data_sets.relist({"a": inputs, "b": replace(inputs, scale=False)})
    with pytest.raises(UsageError, match="names no data set, and this site has several"):
        data_sets.choose("")


def test_faults_of_the_file_are_all_said_at_once(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(
        'coordinator = "x:1"\napproval = "never"\nspeed = 1\n[data.patients]\ntable = "t.csv"\ntarget = "y"\n'
    )
    with pytest.raises(UsageError) as error:
        read_service_settings(file)
    assert "3 fault(s)" in str(error.value)
    for key in ("approval", "speed", "data.patients.id"):
        assert key in str(error.value)
    file.write_text('coordinator = "x:1"\ndata = "t.csv"\n')
    with pytest.raises(UsageError, match="a section for each data set"):
        read_service_settings(file)


def test_the_runs_that_ended_are_told_with_their_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path)
    desk.over({"at": "t", "run": "a1", "study": "waits", "stop": "REFUSED", "models": [], "reason": "east refused"})
    desk.over({"at": "t", "run": "b2", "study": "waits", "stop": "CONVERGED", "models": ["m"], "reason": ""})
    monkeypatch.setattr(service, "_desk", lambda config: desk)
    told = CliRunner().invoke(app, ["runs"]).output.splitlines()
    assert [line.split()[0] for line in told] == ["b2", "a1", "east"], "the reason stands below the run that has one"
