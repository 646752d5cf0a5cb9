"""Faults that only real processes, files and clocks have.

`make faults` repeats them, and writes docs/research/reliability.md.

The first sentence of each test's docstring is its line there. COREG_FAULTS=N repeats the random
drills N times.
"""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from functools import partial

import pytest
from federation import ADDITIVE, LONG, SITES, federation, until
from federation import run as command

from tests.storm.world import alike

pytestmark = [pytest.mark.e2e, pytest.mark.drill, pytest.mark.timeout(1800)]
TIMES = int(os.environ.get("COREG_FAULTS", "0"))  # 0: the quick part, for CI
THOROUGH = pytest.mark.skipif(not TIMES, reason="only in `make faults`")
BUSY = LONG | {"max_rounds": 400}  # seconds of rounds, in which something can happen


@contextlib.contextmanager
def small_disk(folder, size):
    """A file system of its own for a folder, with what is in it."""
    aside = folder.with_name(f"{folder.name}-aside")
    folder.rename(aside)
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "tmpfs", folder]
    mounted = subprocess.run(mount, capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a file system needs root")
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder):
    """A file that takes all space that is left."""
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def serving(fed):
    return {"coordinator": fed.serve(), **fed.all_stay()}


def restarted(fed, name):
    if name == "coordinator":
        return fed.serve()
    return fed.stays(name)


def ended_well(fed, *runs):
    """Every run ends with the models of a run that nothing disturbed, or after the limit of
    attempts.
    """
    until(lambda: fed.over(*runs))
    for run in runs:
        found = fed.run_of(run)
        if found["stop"] == "STALLED":
            assert "attempts were interrupted" in found["reason"]
            continue
        assert found["stop"] in ("CONVERGED", "MAX_ROUNDS"), found["reason"]
        assert alike(fed.kept(run), fed.undisturbed(run))


@pytest.mark.parametrize("turn", range(max(TIMES, 1)))
def test_signals_at_random_moments(tmp_path, turn):
    """SIGKILL, SIGTERM, SIGINT and SIGSTOP hit the coordinator and the agents at random moments of
    two runs.
    """
    chance = random.Random(turn)
    with federation(tmp_path) as fed:
        fed.study("long", **BUSY)
        fed.study("sum", ADDITIVE, model="")
        processes = serving(fed)
        runs = [fed.submit("long"), fed.submit("sum")]
        for _ in range(6):
            name = chance.choice(["coordinator", *SITES])
            number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP])
            time.sleep(chance.uniform(0.0, 0.8))
            processes[name].send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(chance.uniform(0.0, 3.0))
                processes[name].send_signal(signal.SIGCONT)
                continue
            code = processes[name].wait()
            codes = (0, 130)
            if number == signal.SIGKILL:
                codes = (-9,)
            assert code in codes, fed.last(name)
            processes[name] = restarted(fed, name)
        ended_well(fed, *runs)


DISKS = [(fault, site) for fault in ("full", "read-only") for site in ("north", "coordinator")]
SOME_DISKS = [pytest.param(*disk, marks=[THOROUGH] if i else []) for i, disk in enumerate(DISKS)]


@pytest.mark.parametrize(("fault", "site"), SOME_DISKS)
def test_a_disk_that_accepts_nothing(tmp_path, fault, site):
    """The file system of the run store or of a ledger is full, or read-only, and later it is
    not.
    """
    with federation(tmp_path) as fed, contextlib.ExitStack() as disks:
        if site == "coordinator":  # the store has a folder of its own here
            (tmp_path / "store").mkdir()
            file = tmp_path / "co" / "federation.toml"
            file.write_text(file.read_text().replace("../runs.sqlite", "../store/runs.sqlite"))
            (tmp_path / "runs.sqlite").symlink_to("store/runs.sqlite")  # where the tests look
        folder = tmp_path / site
        size = "2m"
        if site == "coordinator":
            folder = tmp_path / "store"
            size = "256m"  # SQLite's log grows to 128 MiB
        disks.enter_context(small_disk(folder, size))
        fed.study("long", **BUSY)
        processes = serving(fed)
        run = fed.submit("long")
        until(lambda: fed.answered(run) >= 20)
        if fault == "full":
            mend = fill(folder).unlink
            assert processes[site].wait(90) == 8, fed.last(site)
            assert "Traceback" not in fed.said(site)
        else:  # a busy one cannot be made read-only: it comes up so, as after a fault of the disk
            processes[site].send_signal(signal.SIGTERM)
            assert processes[site].wait() == 0
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            mend = partial(subprocess.run, ["mount", "-o", "remount,rw", folder], check=True)
            program = "coordinator"
            words = ("co/federation.toml", "--listen", "127.0.0.1:0")
            if site in SITES:
                program = "agent"
                words = ("--config", f"{site}.toml")
            code, _, told = command(f"coreg-{program}", "serve", *words, cwd=tmp_path)
            assert code == 8, told
            assert "Read-only file system" in told, told
        mend()
        processes[site] = restarted(fed, site)
        ended_well(fed, run)
