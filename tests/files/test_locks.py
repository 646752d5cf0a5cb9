"""One process per file: a second one is refused with the holder's name, and a killed one leaves nothing held."""

import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from coreg_core.errors import StorageError
from coreg_wire.files.disk import exclusive, is_held, lock_path

HOLD = """
import sys, time
from pathlib import Path
from coreg_wire.files.disk import exclusive
with exclusive(Path(sys.argv[1]), "x"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


@pytest.fixture
def holder(path):
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=200)


def test_a_second_process_is_refused_and_the_holder_is_named(path, holder):
    assert is_held(path)
    since = time.monotonic()
    with (
        pytest.raises(StorageError, match="file: in use by process 7"),
        exclusive(path, "in use by process 7. End it first."),
    ):
        raise AssertionError
    assert time.monotonic() - since < 200
    holder.send_signal(signal.SIGKILL)
    holder.wait(200)
    assert not is_held(path), "the system releases it, however its holder ends"
    with exclusive(path, "nobody"):
        assert is_held(path)
    assert not is_held(path)


def test_the_file_itself_is_neither_made_nor_opened(path):
    assert not is_held(path)
    assert not lock_path(path).exists(), "asking leaves nothing behind"
    with exclusive(path, "nobody"):
        assert not path.exists()
        assert stat.S_IMODE(lock_path(path).stat().st_mode) == 0o600


def test_a_process_that_starts_is_not_turned_away_by_those_who_ask(path):
    """`is_held` takes the lock for an instant: `status` beside a coordinator that starts."""
    with exclusive(path, "nobody"):
        pass
    done = threading.Event()

    def ask():
        while not done.is_set():
            is_held(path)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for _ in range(20):
            with exclusive(path, "somebody who only asked"):
                pass
    finally:
        done.set()
        asking.join()


def test_a_lock_that_cannot_be_made_is_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"), exclusive(tmp_path / "file" / "under", "x"):
        raise AssertionError
    assert not is_held(tmp_path / "file" / "under")
