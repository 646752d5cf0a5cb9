"""What a user gets wrong: one clear message, the documented exit code, never a traceback."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from federation import run

from coordinator.cli.app import app as coordinator_app
from coreg_core.errors import UsageError
from coreg_sim.cli.app import app as sim_app
from coreg_wire.files.toml_file import read_toml
from coreg_wire.terminal import command_line
from site_agent.cli.app import app as agent_app

AGENT = ("--insecure", "--name", "north", "--coordinator", "127.0.0.1:9")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("mistakes")
    rows = [["id", "a", "b", "y"], *([f"p{i}", i, 2 * i % 7, i if i < 8 else ""] for i in range(20))]
    with (path / "good.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    rows[4][1] = "1,5"
    with (path / "typo.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    (path / "config.toml").write_text('[federation]\nname = "x"\nsites = ["a"]\n[schedule]\ntolerence = 1\n')
    (path / "broken.toml").write_text("[federation\n")
    (path / "agent.toml").write_text('dta = "x.csv"\n')
    (path / "policy.toml").write_text("max_rounds = 0\n")
    (path / "not-a-model").write_text("hello")
    entry = {"at": "2026-01-01T00:00:00.000+00:00", "kind": "Leaving", "previous": "0" * 64}
    (path / "broken.jsonl").write_text(f"{json.dumps(entry)}\n" * 2)
    return path


def agent(*arguments, data="good.csv", target="y", ids="id"):
    return ("coreg-agent", "--data", data, "--target", target, "--id", ids, *arguments)


MISTAKES = {
    "no option": (("coreg-agent", "--data", "good.csv"), 2, "--target"),
    "an option that is none": (("coreg-agent", "--dta", "x"), 2, "--dta"),
    "no such command": (("coreg-coordinator", "served"), 2, "served"),
    "no such table": (agent(*AGENT, data="bad.csv"), 6, "bad.csv: no such file"),
    "a column misspelt": (agent(*AGENT, target="Y"), 6, "Did you mean 'y'"),
    "a typo in a number": (agent(*AGENT, data="typo.csv"), 6, "typo.csv, line 5, column 'a': '1,5'"),
    "not enrolled": (agent("--coordinator", "127.0.0.1:9"), 2, "coreg-agent enroll"),
    "no port": (agent("--insecure", "--name", "n", "--coordinator", "localhost"), 2, "HOST:PORT"),
    "insecure beyond loopback": (agent("--insecure", "--name", "n", "--coordinator", "example.org:1"), 2, "loopback"),
    "nobody listens": (agent(*AGENT, "--patience", "1"), 7, "127.0.0.1:9"),
    "an unknown key in agent.toml": (("coreg-agent", "--config", "agent.toml"), 2, "'dta' is no setting"),
    "a policy out of range": (agent(*AGENT, "--policy", "policy.toml"), 2, "max_rounds"),
    "no such model": (("coreg-agent", "predict", "--model", "m", "--data", "good.csv"), 8, "m: no such model file"),
    "not a model": (("coreg-agent", "predict", "--model", "not-a-model", "--data", "good.csv"), 6, "not a model file"),
    "predictions for a spreadsheet": (
        ("coreg-agent", "predict", "--model", "m", "--data", "good.csv", "--output", "p.xlsx"),
        2,
        "p.xlsx: predictions are written as .csv or .parquet; give --output such a name.",
    ),
    "revoked in a folder that is none": (("coreg-coordinator", "revoke", "north", "--identity", "no"), 2, "--identity"),
    "a chain that is broken": (
        ("coreg-agent", "ledger", "broken.jsonl"),
        8,
        "broken.jsonl, line 2: the chain is broken",
    ),
    "a request that is none": (("coreg-coordinator", "sign", "good.csv"), 2, "coreg-coordinator init DIR"),
    "a misspelt key": (("coreg-coordinator", "run", "config.toml"), 2, "schedule.tolerence"),
    "not TOML": (("coreg-coordinator", "run", "broken.toml"), 2, "line 1"),
    "peers before enrolment": (
        ("coreg-agent", "peers", "--identity", "none"),
        2,
        "coreg-agent enroll --identity none --name",
    ),
    "no store": (("coreg-coordinator", "runs", "--store", "none.sqlite"), 2, "none.sqlite"),
    "a store that is none": (("coreg-coordinator", "runs", "--store", "good.csv"), 8, "good.csv"),
    "no target for a table": (("coreg-sim", "run", "--data", "good.csv"), 2, "--target"),
    "no such schedule": (("coreg-sim", "run", "--schedule", "newton"), 2, "conjugate-gradients"),
    "too few rows": (("coreg-sim", "run", "--data", "good.csv", "--target", "y", "--sites", "2"), 6, "too few"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_clear_message_and_the_documented_code(folder, mistake):
    words, code, said = MISTAKES[mistake]
    got, out, err = run(*words, cwd=folder)
    assert said in err, f"{out}\n{err}"
    assert got == code, err
    assert "Traceback" not in err


def test_options_go_before_the_environment_and_that_before_the_file(folder):
    (folder / "ok.toml").write_text('data = "from-file.csv"\ntarget = "y"\nid = "id"\ncoordinator = "127.0.0.1:9"\n')
    words = ("coreg-agent", "--config", "ok.toml", "--insecure", "--name", "n")
    assert "from-file.csv" in run(*words, cwd=folder)[2]
    assert "from-env.csv" in run(*words, cwd=folder, env={"COREG_DATA": "from-env.csv"})[2]
    assert "option.csv" in run(*words, "--data", "option.csv", cwd=folder, env={"COREG_DATA": "from-env.csv"})[2]


def test_check_names_what_is_wrong(folder):
    code, out, _err = run(
        "coreg-agent", "check", *agent("--coordinator", "127.0.0.1:9", data="typo.csv")[1:], "--json", cwd=folder
    )  # fmt: skip
    verdicts = [json.loads(line) for line in out.splitlines()]
    wrong = [v["text"] for v in verdicts if v["ok"] is False]
    assert code == 6
    [skipped] = [v for v in verdicts if v["ok"] is None]
    assert skipped["text"] == "coordinator: 127.0.0.1:9 is not probed without an identity"
    assert [text.split(":")[0] for text in wrong] == ["table", "identity"], "the coordinator is not to blame"
    assert "line 5" in wrong[0]
    assert "enroll" in wrong[1]


def test_check_names_an_address_that_is_none_as_the_coordinators(folder):
    words = ("coreg-agent", "check", *agent("--coordinator", "localhost", "--insecure", "--name", "north")[1:])
    code, out, _err = run(*words, cwd=folder)
    assert code == 2
    assert [line for line in out.splitlines() if line.startswith("WRONG")] == [
        "WRONG  coordinator: --coordinator localhost: expected HOST:PORT, as in coordinator.example.org:7600."
    ]


def test_check_tells_versions_and_the_space_for_the_model(folder):
    import grpc
    import numpy as np
    import scipy

    code, out, err = run("coreg-agent", "check", *agent(*AGENT)[1:], cwd=folder)
    assert code == 0, f"{out}\n{err}"
    told = {title: text for line in out.splitlines() for title, _, text in [line[7:].partition(": ")]}
    assert "skipped coordinator: 127.0.0.1:9 is not probed with --insecure" in out.splitlines()
    python = ".".join(map(str, sys.version_info[:3]))
    for part in (
        f"Python {python}",
        "coreg ",
        f"numpy {np.__version__}",
        f"scipy {scipy.__version__}",
        grpc.__version__,
    ):
        assert part in told["versions"]
    assert told["output"].startswith("the model goes to model.coreg, where ")
    assert told["output"].endswith("B are free")


def test_compare_agrees_with_the_closed_form():
    small = ("--sites", 3, "--labelled", 10, "--unlabelled", 40, "--prediction-tolerance", "1e-6", "--json")
    code, out, err = run("coreg-sim", "compare", *small)
    assert code == 0, err
    told = json.loads(out)
    names = {row["schedule"] for row in told["schedules"]}
    assert names == {"conjugate-gradients", "block-coordinate-descent", "consensus"}
    for row in told["schedules"]:
        # Q is a sum that is rounded: a few hundred eps of it.
        assert row["true_gap"] <= row["certified_gap"] + 1e-13 * told["closed_form"]["objective"]
        assert row["true_error"] <= row["certified_prediction_bound"] + 1e-11
        assert row["certified_prediction_bound"] <= 1e-6


def test_a_simulation_on_a_table(tmp_path):
    assert run("coreg-sim", "tables", tmp_path)[0] == 0
    words = (
        "coreg-sim",
        "run",
        "--data",
        tmp_path / "clinic.csv",
        "--target",
        "bmi",
        "--sites",
        2,
        "--labelled",
        20,
        "--drop",
        "patient",
        "--drop",
        "progression",
    )
    code, out, err = run(*words, "--coupling", 0.01, "--json")
    assert code == 0, err
    last = json.loads(out.splitlines()[-1])
    assert last["stop"] == "CONVERGED"
    assert len(last["rmse_sites"]) == 2


def test_exit_code_3_when_it_does_not_converge():
    words = ("coreg-sim", "run", "--sites", 3, "--labelled", 10, "--unlabelled", 40, "--max-rounds", 3)
    code, out, _err = run(*words)
    assert code == 3
    assert "were reached before the tolerances. Raise max_rounds, or use conjugate gradients." in out


@pytest.fixture
def model_of_two_features(tmp_path):
    """a, a number, and c, a text: what they were when the model was made."""
    import numpy as np

    from coreg_core.agreement.views import KernelExpansion
    from coreg_core.kernels.functions import Gaussian
    from site_agent.data.preprocessing import Preprocessing
    from site_agent.data.shared_set import load_site_tables
    from site_agent.models.file import SiteModel, save_model

    (tmp_path / "t.csv").write_text("id,a,c,y\n1,1.5,x,1\n2,2,z,2\n3,4,x,\n")
    table = load_site_tables(tmp_path / "t.csv", "y", "id")
    preprocessing = Preprocessing.fit(table)
    function = KernelExpansion(Gaussian(1.5), preprocessing.transform(table.labelled), np.array([0.3, -1.7]))
    path = tmp_path / "north.model"
    save_model(path, SiteModel(function, preprocessing, "y", 0.0, 1.0, "north", "r", "CONVERGED", 0.1, {}))
    return path


def test_predict_says_what_the_model_never_saw(model_of_two_features):
    folder = model_of_two_features.parent
    (folder / "new.csv").write_text("id,a,c\n1,1,never\n2,,x\n")
    words = ("coreg-agent", "predict", "--model", "north.model", "--data", "new.csv", "--id", "id")
    code, out, err = run(*words, cwd=folder)
    assert (code, out) == (0, "2 predictions of y in predictions.csv\n")
    missing, unseen = err.splitlines()
    assert "column 'a': 1 cells are missing" in missing
    assert "column 'c': 1 cells hold a text that the model never saw ('never' first)" in unseen
    code, out, err = run(*words, "--json", cwd=folder)
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["rows"] == 2
    assert [("'a'" in told["notes"][0]), ("'c'" in told["notes"][1])] == [True, True]
    (folder / "new.csv").write_text("a,c\n1,x\n")
    assert run(*words[:-2], cwd=folder)[2] == ""


@pytest.mark.parametrize("name", ["a\\tb", "a\\u001b[2J", "a\\u200bb", "   ", "", "x" * 201])
def test_a_federations_name_is_one_line_of_text_that_can_be_read(tmp_path, name):
    """A character that cannot be printed is replaced on the wire: every site would see another plan than was digested."""
    from coordinator.config.federation_toml import read_configuration
    from coreg_core.errors import UsageError

    path = tmp_path / "federation.toml"
    path.write_text(f'[federation]\nname = "{name}"\nsites = ["a"]\n')
    with pytest.raises(UsageError, match=r"federation\.name = .*1 to 200 printable characters"):
        read_configuration(path)


@pytest.mark.parametrize("name", ["my federation", "Föderation «Süd» 2026", "x" * 200])
def test_a_plan_keeps_its_digest_on_the_wire(tmp_path, name):
    from coordinator.config.federation_toml import read_configuration
    from coreg_core.protocol.plan import Plan
    from coreg_wire.transport.fields import fill, read
    from coreg_wire.v1 import federation_pb2 as pb

    text = f'[federation]\nname = "{name}"\nsites = ["a", "b", "c"]\n'
    (tmp_path / "federation.toml").write_text(text, encoding="utf-8")
    plan = read_configuration(tmp_path / "federation.toml").plan()
    message = pb.Plan()
    fill(message, plan)
    again = read(Plan, message)
    assert again == plan
    assert again.digest == plan.digest


def test_every_outcome_has_a_documented_exit_code():
    from coreg_core.agreement.schedules.schedule import Stop
    from coreg_core.protocol.outcomes import Outcome, exit_code
    from coreg_wire.terminal.command_line import EXIT_CODES

    assert {exit_code(outcome) for outcome in Outcome} <= set(EXIT_CODES)
    assert exit_code(Outcome.CONVERGED) == 0
    assert all(exit_code(outcome) for outcome in Outcome if outcome is not Outcome.CONVERGED)
    assert {stop.name for stop in Stop} <= {outcome.name for outcome in Outcome}, "a schedule's end is a run's"


def test_every_outcome_says_what_happened_and_what_to_do():
    from coreg_core.protocol.outcomes import Outcome, advice, told

    for outcome in Outcome:
        assert bool(advice(outcome)) is (outcome is not Outcome.CONVERGED)
        assert told(outcome, "b is gone") == f"{outcome.name.lower()}: b is gone. {advice(outcome)}".rstrip()
        assert told(outcome, "").startswith(f"{outcome.name.lower()}: {outcome.value.rstrip('.')}.")


def test_the_sample_configurations_are_read(tmp_path):
    from coordinator.config.federation_toml import read_configuration
    from coordinator.config.sample import SAMPLE
    from coreg_core.protocol.plan import Agreement, Iteration, Membership, Privacy
    from site_agent.policy.policy import Policy, read_policy

    (tmp_path / "federation.toml").write_text(SAMPLE)
    plan = read_configuration(tmp_path / "federation.toml").plan()
    assert plan.membership == Membership(("site-a", "site-b", "site-c"), 3)
    assert (plan.objective, plan.iteration, plan.privacy) == (Agreement(), Iteration(), Privacy("sums")), (
        "it shows defaults"
    )
    pinned = {site: str(v) * 64 for v, site in enumerate(plan.sites)}
    assert Policy(peers=pinned).objection(plan) is None
    assert "needs 3 sites of it among this site's [peers]" in (Policy().objection(plan) or "")
    deploy = Path(__file__).resolve().parents[2] / "deploy"
    assert read_policy(deploy / "policy.toml") == Policy(answers="sums")
    code, _out, err = run("coreg-agent", "--config", deploy / "agent.toml")
    assert code == 2  # as it stands there is no key, and the next step is named
    assert "coreg-agent enroll" in err


@pytest.mark.parametrize(
    ("sites", "rest", "said"),
    [
        ('["a", "b"]', "", "of two sites' sum each learns the other's part"),
        ('["a", "b", "c"]', "min_sites = 2\n", "sums need 3 sites at least"),
        ('["a", "b", "c"]', '[schedule]\nname = "block-coordinate-descent"\n', "no sum hides it"),
    ],
)
def test_what_sums_cannot_serve_is_a_fault_of_the_file_that_says_what_to_do(tmp_path, sites, rest, said):
    from coordinator.config.federation_toml import read_configuration
    from coreg_core.errors import UsageError

    path = tmp_path / "federation.toml"
    text = f'[federation]\nname = "x"\nsites = {sites}\n{rest}'
    path.write_text(f'{text}[privacy]\nanswers = "sums"\n')
    with pytest.raises(UsageError, match=said):
        read_configuration(path)
    path.write_text(f'{text}[privacy]\nanswers = "clear"\n')
    assert not read_configuration(path).plan().masked


@pytest.mark.parametrize("program", ["coreg-coordinator", "coreg-agent", "coreg-sim"])
def test_every_program_says_which_release_it_is(program, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", [program, "--version"])
    app = {"coreg-coordinator": coordinator_app, "coreg-agent": agent_app, "coreg-sim": sim_app}[program]
    assert command_line.run(app, program) == 0
    assert re.fullmatch(rf"{program} \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)
    monkeypatch.setattr("sys.argv", [program, "run", "--version"])
    assert command_line.run(app, program) == 0
    assert capsys.readouterr().out.startswith(f"{program} ")


def test_a_file_that_is_nested_too_deeply_is_a_sentence(tmp_path):
    path = tmp_path / "deep.toml"
    deep = ("a = " + "[" * 100_000 + "]" * 100_000, "a" + ".b" * 5_000 + " = 1", "a = " + "{b = " * 40 + "1" + "}" * 40)
    for text in deep:
        path.write_text(text)
        with pytest.raises(UsageError, match="nested too deeply"):
            read_toml(path)
    path.write_text("[a.b.c]\nd = [[{e = 1}]]\n")
    assert read_toml(path) == {"a": {"b": {"c": {"d": [[{"e": 1}]]}}}}
