"""What another party or a file wrote moves no cursor of a terminal."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from coreg_core.outcomes import Notice
from coreg_wire.files.disk import make_private_folder
from coreg_wire.terminal.service import log_notice, make_log
from coreg_wire.terminal.text import echo, visible

EVIL = "plan\x1b[2J\x9b1mred\r\u202etxt\u2066"


def test_control_characters_are_shown(capsys):
    echo(EVIL)
    echo(EVIL, err=True)
    for out in capsys.readouterr():
        assert out == "plan\\x1b[2J\\x9b1mred\\r\\u202etxt\\u2066\n"
    assert visible("λ = 0,\n\t38 °C é") == "λ = 0,\n\t38 °C é"


@pytest.mark.parametrize("as_json", [False, True], ids=["logfmt", "json"])
def test_a_log_line_is_one_line_without_control_characters(monkeypatch, as_json):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    structlog.reset_defaults()
    log_notice(make_log(as_json=as_json), Notice("left", f"{EVIL}\nforged", "warning"))
    [line] = written.getvalue().splitlines()
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e" for c in line)
    if as_json:
        assert "forged" in json.loads(line)["text"]


def test_every_new_folder_is_for_its_owner_alone(tmp_path):
    before = os.umask(0o022)
    try:
        made = make_private_folder(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [folder.name for folder in made] == ["c", "b", "a"]
    assert {folder.stat().st_mode & 0o777 for folder in made} == {0o700}
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="exists"):
        make_private_folder(tmp_path / "file")


def test_a_reader_that_ends_early_is_no_fault():
    """`| head -1` ends with 0."""
    program = Path(sys.executable).with_name("coreg-agent")
    command = f"{program} --help | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
