"""coordinator/service/daemon.py: `run`, which is the service with one study."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from machine.tiny import make_plan
from store.filled import NOW, RECORDS, begun, write

from coordinator.authority.pki import create_authority
from coordinator.config.federation_toml import (
    Configuration,
    FederationSection,
    read_configuration,
)
from coordinator.config.study_toml import read_study
from coordinator.machine import notices
from coordinator.machine.records import Ended
from coordinator.service.access import AccessControl
from coordinator.service.daemon import ABANDONED, Daemon, ServiceOptions, choose_run, run
from coordinator.store.runs import RunStore, trained_run
from coordinator.store.status import Status, store_of
from coreg_core.errors import StorageError, UsageError
from coreg_core.messages import PROTOCOL_VERSION, Finished, Hello
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Outcome

RUN, NEXT = (
    "run-1",
    "run-2",
)  # the second is the name that the configuration has made up for a new run
OTHER = make_plan(run=NEXT, coupling=(9.0,))
UNTIL = {"no attempt": [], "an attempt": RECORDS[:1], "a step": RECORDS[:2]}


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with closing(RunStore(tmp_path / "runs.sqlite")) as opened:
        yield opened


# --- which run ------------------------------------------------------------------------------------


@pytest.mark.parametrize("until", UNTIL)
def test_an_unfinished_run_of_the_same_plan_is_chosen(store: RunStore, until: str) -> None:
    begun(store, UNTIL[until])
    assert choose_run(store, make_plan(run=NEXT), new=False) == make_plan()
    assert store.waiting() == []


def test_a_run_of_the_same_plan_that_waits_is_chosen_and_otherwise_a_new_one_is_queued(
    store: RunStore,
) -> None:
    begun(store, RECORDS)  # over
    for name in (NEXT, "run-3"):
        assert choose_run(store, make_plan(run=name), new=False) == make_plan(run=NEXT)
    assert store.waiting()[0][0] == make_plan(run=NEXT)
    assert [s.run for s in store.runs()] == [RUN]


def test_a_run_of_another_plan_is_not_abandoned_unasked(store: RunStore) -> None:
    begun(store, UNTIL["an attempt"])
    with pytest.raises(
        UsageError, match=r"run run-1 in .* is unfinished and has another plan.*--new"
    ):
        choose_run(store, OTHER, new=False)
    assert store.find(RUN).ended is None
    assert choose_run(store, OTHER, new=True) == OTHER
    assert store.find(RUN).stop == "INTERRUPTED"
    assert store.find(RUN).reason == ABANDONED


def test_a_run_of_another_plan_that_never_had_an_attempt_gives_way(store: RunStore) -> None:
    begun(store, UNTIL["no attempt"])
    assert choose_run(store, OTHER, new=False) == OTHER
    assert store.find(RUN).stop == "INTERRUPTED"


def test_models_score_together_that_were_trained_together(store: RunStore) -> None:
    with pytest.raises(UsageError, match="no run has models"):
        trained_run(store.path, "")
    for name in ("old", "new"):
        begun(store, RECORDS, run=name)
    begun(store, [Ended(Outcome.REFUSED, "no")], run="refused")
    scoring = replace(make_plan(run="score"), objective=Scoring("new", "agreement"))
    store.begin(scoring, NOW)
    write(store, scoring, [Ended(Outcome.CONVERGED, "")])
    aligned = replace(
        make_plan(run="aligned"), objective=Alignment()
    )  # its results are lists of ids
    store.begin(aligned, NOW)
    write(store, aligned, RECORDS)
    found = trained_run(store.path, "")
    assert found.run == "new"
    assert found.objective == "agreement"
    assert found.sites == ("a", "b", "c")
    assert found.columns == 1
    assert trained_run(store.path, "ol").run == "old"
    with pytest.raises(UsageError, match="run aligned has no models"):
        trained_run(store.path, "aligned")
    with pytest.raises(UsageError, match="run refused has no models"):
        trained_run(store.path, "refused")
    with pytest.raises(UsageError, match="no such run store"):
        trained_run(store.path.with_name("missing"), "")


def test_a_scoring_has_a_column_for_each_class_of_the_run_that_it_names(
    store: RunStore, tmp_path: Path
) -> None:
    classes = Additive(task="classification", classes=("low", "middle", "high"))
    plan = replace(make_plan(run="of-classes"), objective=classes)
    store.begin(plan, NOW)
    write(store, plan, RECORDS)
    study = tmp_path / "study.toml"
    text = '[study]\nname = "s"\n[model]\nobjective = "scoring"\n'
    study.write_text(f'{text}of_run = "of-cl"\n')
    federation = FederationSection(name="tiny", sites=("a", "b", "c"))
    scored = read_study(study).plan(federation, lambda run: trained_run(store.path, run))
    assert scored.objective == Scoring("of-classes", "additive", columns=3)
    study.write_text(f"{text}columns = 3\n")  # it follows from the run
    with pytest.raises(UsageError, match="columns: unknown key"):
        read_study(study)


# --- the process ----------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "federation.toml"
    with mock.patch("coordinator.authority.pki.DAYS", 29):
        create_authority(tmp_path, [])
    path.write_text(
        '[federation]\nname = "tiny"\nsites = ["a", "b", "c"]\n[privacy]\naggregation ='
        ' "plaintext"\n[alignment]\nalign = false\n[service]\nlisten ='
        ' "127.0.0.1:0"\n[timeouts]\njoin = 0.5\n'
    )
    return path


def carried_out(path: Path, plan: Any = None) -> tuple[Any, list[str], Configuration]:
    configuration = read_configuration(path)
    names = list[str]()
    end = run(
        path,
        configuration,
        plan or make_plan(),
        ServiceOptions(),
        lambda n: names.append(n.name),
        new=False,
    )
    return end, names, configuration


def test_a_run_whose_sites_do_not_come_ends_and_so_does_the_process(path: Path) -> None:
    end, names, configuration = carried_out(path)
    assert end.run == RUN
    assert end.outcome == Outcome.TOO_FEW_SITES
    assert "a, b, c did not join within 0.5 s" in end.reason
    first = [
        names.pop(names.index(name)) for name in ("certificate_warning", "server_renewed")
    ]  # a thread finds them
    assert names == ["listening", "answers_in_clear", "run_began", "run_ended", "stopped"]
    assert len(first) == 2
    store = RunStore(configuration.service.store)
    assert store.find(RUN).stop == "TOO_FEW_SITES"
    assert store.unfinished() == []
    store.close()


class Recorder:
    """An observer that keeps its notices."""

    def __init__(self) -> None:
        self.notices = list[Any]()

    def __call__(self, notice: Any) -> None:
        self.notices.append(notice)


@pytest.fixture
def daemon(path: Path, store: RunStore) -> Any:
    with closing(Status(store.path)) as status:
        yield Daemon(
            path,
            read_configuration(path),
            ServiceOptions(),
            AccessControl(path.parent),
            store,
            status,
            [Recorder()],
        )


def test_a_site_is_greeted_with_the_ends_that_it_waits_for(daemon: Daemon, store: RunStore) -> None:
    begun(store, RECORDS)
    begun(store, RECORDS[:-1], run="unfinished")
    hello = Hello("a", PROTOCOL_VERSION, runs=(RUN, "unfinished", "unknown"))
    assert daemon.transport.greetings("a", hello) == [Finished(RUN, Outcome.CONVERGED, "")]


def test_the_log_says_what_needs_a_restart_and_when_a_damaged_list_is_read_again(
    daemon: Daemon, path: Path
) -> None:
    path.write_text(
        path.read_text().replace("127.0.0.1:0", "127.0.0.1:1").replace("join = 0.5", "join = 0.3")
    )
    daemon.reload()
    for lines in ("damaged", "", ""):
        (path.parent / "authorised-sites").write_text(lines)
        daemon.check_sessions()
    [reloaded, _, again] = [notice.text for notice in daemon.observers[0].notices]
    assert reloaded.endswith("; the change of [service] listen, [timeouts] needs a restart")
    assert again == "authorised-sites is read again"
    assert notices.draining(()).fields == {}


def test_a_second_process_on_a_store_is_refused_with_the_name_of_the_first(
    path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("coreg_wire.files.disk.ACQUIRE_SECONDS", 0.1)
    _, _, configuration = carried_out(path)  # it left its status behind
    store = configuration.service.store
    with store_of(store):
        with pytest.raises(
            StorageError, match=r"in use by the coordinator with process id \d+ on .*submit"
        ):
            carried_out(path)
        reader = RunStore(store, read_only=True)
        assert len(reader.runs()) == 1, "readers need no lock"
        reader.close()
