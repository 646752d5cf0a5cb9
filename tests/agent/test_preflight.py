"""check: everything that can be found out before joining, each with its verdict; and a plan that is judged beforehand."""

import re
from unittest import mock

import pytest
from agent_files import agent, write
from checked_folder import INSECURE, TABLE, check, made

from coreg_core.errors import StorageError
from coreg_wire.terminal import command_line
from coreg_wire.terminal.command_line import owner_hint


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return made(tmp_path)


def test_each_check_has_its_own_verdict(folder):
    write(folder, (folder / "north.csv").read_text().replace("\n3,", "\n3,1;", 1), "typo.csv")
    code, verdicts = check(*TABLE, "--data", "typo.csv", "--coordinator", "127.0.0.1:9")
    assert code == 6
    wrong = [v["text"] for v in verdicts if v["ok"] is False]
    assert [text.split(":")[0] for text in wrong] == ["table", "identity"], "the coordinator is not to blame"
    assert ("line 5" in wrong[0], "coreg-agent join" in wrong[1]) == (True, True)
    [skipped] = [v for v in verdicts if v["ok"] is None]
    assert skipped["text"] == "not checked: connection (127.0.0.1:9: no identity)"
    done = agent("check", *TABLE, *INSECURE[:3], "--coordinator", "localhost")
    assert done.exit_code == 2
    assert [line for line in done.stdout.splitlines() if line.startswith("WRONG")] == [
        "WRONG  connection: coordinator localhost (--coordinator, or agent.toml): expected HOST:PORT, as in example.org:7600."
    ]


def test_without_a_coordinator_all_but_the_connection_is_checked(folder):
    done = agent("check", *TABLE, *INSECURE[:3])
    lines = done.stdout.splitlines()
    assert done.exit_code == 0
    assert [line.split(":")[0] for line in lines] == [
        "ok     versions", "ok     ledger", "ok     table", "WARN   ids", "ok     policy", "ok     modes", "ok     identity",
        "not checked", "ok     output",
    ]  # fmt: skip
    assert "texts with at most" in lines[3], "the ids of this table are small numbers"
    assert lines[7] == "not checked: connection (no --coordinator)"


# --- before an alignment --------------------------------------------------------------------------------------------


def test_a_table_without_unlabelled_rows_is_a_warning_since_an_alignment_can_find_the_shared_ids(folder):
    write(folder, "id,u,y\n" + "".join(f"patient-{i:05d},{i},{i / 7}\n" for i in range(40)), "whole.csv")
    done = agent("check", *TABLE, "--data", "whole.csv", *INSECURE)
    assert done.exit_code == 0, done.stdout
    [warning, *_] = [line for line in done.stdout.splitlines() if line.startswith("WARN")]
    assert "no row has an empty 'y'" in warning
    assert "A run aligns the ids first" in warning
    assert "ok     ids: 40 ids, as an alignment compares them: 'patient-00000'" in done.stdout


def test_a_column_that_is_no_id_is_one_fault_and_the_id_is_suggested(folder):
    rows = "".join(f"{i % 6},p{i},{i},{i if i < 4 else ''}\n" for i in range(40))
    write(folder, "group,patient,u,y\n" + rows, "north.csv")
    code, found = check("--data", "north.csv", "--target", "y", "--id", "group", *INSECURE)
    wrong = [each["text"] for each in found if each["ok"] is False and each["check"].startswith("table")]
    assert code == 6
    assert any("'group' is no id of these rows: 36 shared instances have 6 different values" in text for text in wrong)
    assert any("'patient'" in text and "give that column as the id" in text for text in wrong)
    assert not any("occurs" in text for text in wrong)


def test_labelled_instances_among_the_shared_ones_are_told(folder):
    for first, expected in ((9, 0), (7, 2)):  # rows 0 to 8 are labelled
        write(folder, "\n".join(["id,u,v", *(f"{i},{i % 3},{i}" for i in range(first, 20)), ""]), "shared.csv")
        _, found = check(*TABLE, *INSECURE, "--unlabelled", "shared.csv")
        told = [each["text"] for each in found if "learns most from such labels" in each["text"]]
        assert len(told) == bool(expected)
        assert all(f"{expected} labelled instances are shared too: " in text for text in told)


@pytest.mark.parametrize(("owner", "mend"), [("alice", r"\(sudo -u alice .*\)"), ("root", r"\(sudo chown nobody .*\)")])
def test_a_file_of_another_user_names_both(folder, monkeypatch, owner, mend):
    """The commonest mistake beside systemd: a command without sudo -u."""
    monkeypatch.setattr("os.geteuid", lambda: 65534)
    monkeypatch.setattr(command_line, "_name", lambda uid: "nobody" if uid == 65534 else owner)
    try:
        try:
            raise PermissionError(13, "Permission denied", str(folder / "identity" / "nothing"))
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot be read.") from None
    except StorageError as error:
        told = owner_hint(error)
    assert re.fullmatch(rf" {folder} belongs to {owner}, and this command runs as nobody: .*{mend}.*\.", told)
    assert owner_hint(StorageError("full")) == ""
    with mock.patch("pathlib.Path.open", side_effect=PermissionError(13, "Permission denied", "north.csv")):
        _, verdicts = check(*TABLE, *INSECURE)
    [text] = [v["text"] for v in verdicts if v["check"] == "table" and not v["ok"]]
    assert "belongs to" in text
    assert "and this command runs as nobody" in text


def test_a_file_that_others_can_change_is_wrong(folder):
    config = write(folder, 'data = "north.csv"\ntarget = "y"\nid = "id"\npolicy = "policy.toml"\n', "agent.toml")
    config.chmod(0o666)
    code, verdicts = check("--config", "agent.toml", *INSECURE[:3])
    [wrong] = [v["text"] for v in verdicts if v["ok"] is False]
    assert code == 8
    assert wrong.startswith("modes: all users can change agent.toml, and with them")
    assert "chmod o-w" in wrong
