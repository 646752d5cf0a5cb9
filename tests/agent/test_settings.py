"""agent.toml, the environment and the command line: what goes before what, and every fault with its key."""

import pytest
from agent_files import agent, write

from coreg_core.errors import UsageError
from site_agent.config.options import OWN, TABLE
from site_agent.config.settings import ONLY, AgentSettings, read_settings
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import site_salt
from site_agent.data.sources import NA_VALUES, Query
from site_agent.service import app
from site_agent.service.app import Given
from site_agent.service.console import Terminal

FLAT = 'coordinator = "c:1"\ndata = "sqlite:clinic.db?SELECT 1"\ntarget = "y"\nid = "id"\nunlabelled = "s.csv"\n'
SECTIONS = """
coordinator = "c:1"
identity = "north"
[data.patients]
table = "t.csv"
target = "y"
id = "id"
dates = {d = "%d/%m/%Y"}
na_values = ["-999"]
scale = false
[data.staff]
table = "/else/where.csv"
id = "id"
"""


def test_one_table_is_given_flat_and_several_in_sections(tmp_path):
    flat = read_settings(write(tmp_path, FLAT, "a.toml"), {}).data
    query, shared = Query(tmp_path / "clinic.db", "SELECT 1"), tmp_path / "s.csv"
    assert flat == {ONLY: Inputs(table=query, target="y", id="id", unlabelled=shared)}
    settings = read_settings(write(tmp_path, SECTIONS, "b.toml"), {}, ("data", "target", "id", "coordinator"))
    patients, staff = settings.data["patients"], settings.data["staff"]
    assert (patients.table, patients.dates, patients.scale) == (tmp_path / "t.csv", {"d": "%d/%m/%Y"}, False)
    assert (patients.na_values, staff.na_values) == (("-999",), NA_VALUES)
    assert (str(staff.table), staff.target, staff.scale) == ("/else/where.csv", None, True)
    with pytest.raises(UsageError, match=r"--data, --target: .*b\.toml has sections \[data\.NAME\]"):
        read_settings(tmp_path / "b.toml", {"data": "x.csv", "target": "y"})


def test_paths_of_the_file_are_relative_to_it_and_those_of_a_command_line_are_not(tmp_path):
    config = write(tmp_path, SECTIONS, "a.toml")
    settings = read_settings(config, {"output": "m.coreg", "policy": None})
    assert (str(settings.output), settings.policy) == ("m.coreg", None)
    assert settings.ledger_path == tmp_path / "north" / "ledger.jsonl"
    assert settings.state_path == tmp_path / "north" / "service"
    assert settings.models == tmp_path / "models"
    flat = read_settings(write(tmp_path, FLAT, "flat.toml"), {"unlabelled": "here.csv"}).data[ONLY]
    assert (flat.table.database, str(flat.unlabelled)) == (tmp_path / "clinic.db", "here.csv")
    assert read_settings(None, {"identity": "here"}).ledger_path.as_posix() == "here/ledger.jsonl"
    assert list(Given(tmp_path / "flat.toml").settings().data) == [ONLY], "`serve` takes one table too"
    assert Given(config, coordinator="other:2").settings().coordinator == "other:2"


def test_an_option_goes_before_the_environment_and_that_before_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 'data = "from-file.csv"\ntarget = "y"\nid = "id"\n', "a.toml")

    def table(*options):
        found = agent("check", "--config", "a.toml", "--insecure", "--name", "n", *options).stdout
        return next(word for word in ("from-file", "from-env", "option") if f"{word}.csv: no such file" in found)

    assert table() == "from-file"
    monkeypatch.setenv("COREG_DATA", "from-env.csv")
    assert table() == "from-env"
    assert table("--data", "option.csv") == "option"


def test_missing_settings_are_named_as_options_and_as_variables_after_a_misspelt_key(tmp_path):
    with pytest.raises(UsageError) as error:
        read_settings(None, {"target": "y", "id": "", "data": None}, ("data", "target", "coordinator"))
    assert "missing: --data, --coordinator." in str(error.value)
    assert "COREG_DATA, COREG_COORDINATOR" in str(error.value)
    with pytest.raises(
        UsageError, match=r"missing: --target, --id, --coordinator\. .* COREG_TARGET, COREG_ID, COREG_COORDINATOR"
    ):
        read_settings(None, {"data": "t.csv"}, ("data", "target", "id", "coordinator"))
    with pytest.raises(UsageError, match="dta: unknown key; did you mean data"):
        read_settings(write(tmp_path, 'dta = "x.csv"', "a.toml"), {}, ("data",))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('dta = "t.csv"', ["dta: unknown key; did you mean data?"]),
        ('approval = "never"\nspeed = 1\n[data.p]\ntable = "t"', ["2 faults", "approval", "speed"]),
        ('[data."a/b"]\ntable = "t"\nid = "i"', ["data set"]),
        ('[data.p]\ntable = "t"\nid = "i"\nscale = "yes"', ["data.p.scale = 'yes'"]),
        ("patience = 5", ["patience: unknown key"]),
        ('connect_timeout = "long"', ["connect_timeout"]),
        ("connect_timeout = 0", ["connect_timeout"]),
        ("insecure = true", ["insecure: only for a command line, as --insecure"]),
        ('name = "n"', ["name: only for a command line, as --name"]),
    ],
)
def test_every_fault_of_the_file_is_named(tmp_path, text, named):
    with pytest.raises(UsageError) as error:
        read_settings(write(tmp_path, text, "a.toml"), {})
    assert [words for words in ("a.toml", *named) if words not in str(error.value)] == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            'drop = ["a"]\n[data.patients]\ntable = "t.csv"\nid = "id"\n',
            "drop: keys of a table have no effect above its section",
        ),
        ('[data]\ntable = "t.csv"\nid = "id"\n', "data.table"),
        ('[patients]\ntable = "t.csv"\nid = "id"\n', "patients"),
        ('[data.patients]\ndata = "t.csv"\nid = "id"\n', r"data.patients.data"),
        ('[data.p]\ntable = "t.csv"\nid = "id"\napproval = "ask"\n', "data.p.approval: .* top level of the file"),
    ],
)
def test_a_key_in_another_place_is_never_without_effect(tmp_path, text, told):
    (tmp_path / "agent.toml").write_text(text)
    with pytest.raises(UsageError, match=told):
        read_settings(tmp_path / "agent.toml", {})


def test_one_run_needs_a_terminal_or_its_consent_beforehand(tmp_path, monkeypatch):
    """The agent.toml of the current folder is read without an option."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 'coordinator = "127.0.0.1:1"\ndata = "t.csv"\nwords = "eight words"\n', "agent.toml")
    settings = read_settings(None, {"insecure": True, "name": "clinic"})
    assert (settings.coordinator, settings.data[ONLY].id, settings.words) == ("127.0.0.1:1", None, "eight words")
    with pytest.raises(UsageError, match=r"nobody can be asked here.* Give --yes to take part, and --words"):
        Terminal(consents=not settings.yes)
    with pytest.raises(UsageError, match="expected HOST:PORT"):
        app.check_address("https://127.0.0.1:7600")


def test_the_secret_is_on_the_disk_before_the_ledger_needs_it(tmp_path, monkeypatch):
    """After a power cut a ledger without its secret would lock the site out."""
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    secret = site_salt(tmp_path / "salt", tmp_path / "ledger.jsonl")
    assert len(synced) == 2, "the file, and its name in the folder"
    assert ((tmp_path / "salt").read_bytes(), (tmp_path / "salt").stat().st_mode & 0o777) == (secret, 0o600)


def test_every_setting_of_a_table_has_an_option():
    assert set(TABLE.values()) == set(Inputs.model_fields)
    assert set(OWN) <= set(AgentSettings.model_fields)
