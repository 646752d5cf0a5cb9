"""Changes to files are complete and on the disk when a method returns: names, folders, every byte."""

import errno
import os
import stat
from pathlib import Path

import pytest

import coreg_wire.files.disk as files
from coreg_core.errors import StorageError
from coreg_wire.files.disk import Disk


@pytest.fixture
def synced(monkeypatch):
    """The folders whose names were put on the disk, in order."""
    found, real = [], files.sync_folder
    monkeypatch.setattr("coreg_wire.files.disk.sync_folder", lambda folder: (found.append(folder), real(folder)))
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
    file, synced = Disk().append_to(tmp_path / "log"), []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: synced.append((tmp_path / "log").read_bytes()))
    for data in (b"one\n", b"two\n"):
        file.write(data)
    assert synced == [b"one\n", b"one\ntwo\n"]
    file.close()
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600
    full = Disk().append_to(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        full.write(b"three\n")
    full.close()

    class Half:
        def write(self, data):
            return len(data) // 2

    full._file = Half()
    with pytest.raises(OSError, match="No space left") as error:
        full.write(b"three\n")  # a full disk takes a part without an error
    assert error.value.errno == errno.ENOSPC


def test_a_file_is_replaced_at_one_instant(tmp_path, monkeypatch):
    path, disk = tmp_path / "status.json", Disk()
    disk.write_whole(path, b"old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def fails(_descriptor):
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fails)
        with pytest.raises(StorageError, match="Input/output error"):
            disk.write_whole(path, b"new")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])
    disk.write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_link_is_pointed_elsewhere_at_one_instant_and_a_left_over_is_no_harm(tmp_path):
    disk, link = Disk(), tmp_path / "current"
    (tmp_path / ".current.new").symlink_to("left by a kill")
    for name in ("r1", "r2"):
        disk.point(link, name)
        assert str(link.readlink()) == name
    assert [p.name for p in tmp_path.iterdir()] == ["current"]


def test_moves_and_removals(tmp_path):
    disk, first = Disk(), tmp_path / "l"
    first.write_text("1")
    disk.replace(first, tmp_path / "m")
    assert (tmp_path / "m").read_text() == "1"
    for name in ("l", "m"):
        disk.remove(tmp_path / name)
    disk.make_folder(tmp_path / "tree" / "under")
    for _ in range(2):  # what is not there is no error
        disk.remove_tree(tmp_path / "tree")
    assert list(tmp_path.iterdir()) == []
