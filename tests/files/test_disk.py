"""Changes to files are on the disk when a method returns; locks of one process; nested TOML."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import coreg_wire.files.disk as files
from coordinator.config.federation_toml import read_configuration
from coreg_core.errors import StorageError, UsageError
from coreg_wire.files.disk import Disk, exclusive, is_held, lock_path


@pytest.fixture
def synced(monkeypatch):
    """The folders whose names were put on the disk, in order."""
    found = []
    real = files.sync_folder
    monkeypatch.setattr(
        "coreg_wire.files.disk.sync_folder", lambda folder: (found.append(folder), real(folder))
    )
    return found


def test_the_name_of_a_new_file_and_of_new_folders_is_on_the_disk(tmp_path, synced):
    disk = Disk()
    disk.append_to(tmp_path / "log").close()
    assert synced == [tmp_path], "its name, before anything stands in it"
    disk.append_to(tmp_path / "log").close()
    assert len(synced) == 1
    disk.make_folder(tmp_path / "a" / "b" / "c")
    assert set(synced[1:]) == {tmp_path, tmp_path / "a", tmp_path / "a" / "b"}
    assert stat.S_IMODE((tmp_path / "a" / "b" / "c").stat().st_mode) == 0o700
    disk.make_folder(tmp_path / "a")  # exists


def test_an_append_is_whole_and_synchronised_or_an_error(tmp_path, monkeypatch):
    file = Disk().append_to(tmp_path / "log")
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda _descriptor: synced.append((tmp_path / "log").read_bytes())
    )
    for data in (b"one\n", b"two\n"):
        file.write(data)
    assert synced == [b"one\n", b"one\ntwo\n"]
    file.close()
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_a_full_disk_is_an_error():
    full = Disk().append_to(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        full.write(b"three\n")
    full.close()


def test_a_disk_that_takes_a_part_of_an_append_is_full(tmp_path):
    """The system reports no error: the file may have eight bytes, and four of six are written."""
    file = Disk().append_to(tmp_path / "log")
    file.write(b"one\n")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, hard))
    try:
        with pytest.raises(OSError, match="No space left") as error:
            file.write(b"three\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    file.close()
    assert error.value.errno == errno.ENOSPC


def test_a_file_is_replaced_at_one_instant(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    disk = Disk()
    disk.write_whole(path, b"old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def fails(_descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(StorageError, match="Input/output error"):
            disk.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    disk.write_whole(path, b"new")
    assert path.read_bytes() == b"new"


# --- locks: a second process is refused, and a killed one leaves nothing held ---------------------

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
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=200)


def test_a_second_process_is_refused_and_the_holder_is_named(path, holder):
    assert is_held(path)
    with (
        pytest.raises(StorageError, match="file: in use by process 7"),
        exclusive(path, "in use by process 7. End it."),
    ):
        raise AssertionError
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
    with (
        pytest.raises(StorageError, match="cannot be written"),
        exclusive(tmp_path / "file" / "under", "x"),
    ):
        raise AssertionError
    assert not is_held(tmp_path / "file" / "under")


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "deep.toml"
    keys = ".".join("b" * 5_000)
    nested = "1"
    for _ in range(40):
        nested = f"{{b = {nested}}}"
    long = f"a = 1{5000 * '0'}"
    deep = ("a = " + "[" * 100_000 + "]" * 100_000, f"a.{keys} = 1", f"a = {nested}", long)
    for text in deep:
        path.write_text(text)
        with pytest.raises(UsageError, match=r"nested too deeply|faults?:"):
            read_configuration(path)
