"""What an agent and its coordinator hold at most in a real run: three sites, masked, each a process under mutual TLS.

    python benchmarks/connected.py [--sizes 10000 100000] [--write]

By the commands that an operator types, on tables of 100 labelled rows and 8 columns; the kernel's own record of each process's
peak, read until it ends. --write keeps them in docs/performance.json.
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "proto")]

from coreg_sim.demo import processes  # noqa: E402

FIGURES = ROOT / "docs" / "performance.json"
SITES, LABELLED, COLUMNS, NUMBERS = ("east", "north", "west"), 100, 8, "%.5f"
FEDERATION = """\
[federation]
name = "memory"
sites = {sites}
[model]
form = "semi-parametric"
coupling = 0.1
label_units = "centred"
[privacy]
answers = "sums"
[service]
listen = "127.0.0.1:0"
"""


def tables(work: Path, m: int) -> None:
    """Each site's own labelled rows, and the m that all of them share."""
    draws = random.Random(0)

    def row() -> list[float]:
        return [draws.gauss(0.0, 1.0) for _ in range(COLUMNS)]

    shared = "".join(f"i{i},,{','.join(NUMBERS % x for x in row())}\n" for i in range(m))
    for site in SITES:
        with (work / f"{site}.csv").open("w", encoding="utf-8") as file:
            file.write(f"id,y,{','.join(f'x{j}' for j in range(COLUMNS))}\n")
            for i in range(LABELLED):
                x = row()
                y = sum(x) + draws.gauss(0.0, 1.0)
                file.write(f"{site}{i},{y:.5f},{','.join(NUMBERS % each for each in x)}\n")
            file.write(shared)


@contextlib.contextmanager
def watched() -> Iterator[dict[str, int]]:
    """The peaks, in bytes, of the processes that are started meanwhile: the coordinator's, and each site's."""
    peaks: dict[str, int] = {}
    started = processes.subprocess.Popen

    def watch(who: str, process: subprocess.Popen) -> None:
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            with contextlib.suppress(OSError, ValueError):  # it ends meanwhile
                [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
                peaks[who] = max(peaks.get(who, 0), 1024 * int(line.split()[1]))
            time.sleep(0.02)

    def start(command: list[str], **options: object) -> subprocess.Popen:
        process = started(command, **options)
        who = next((site for site in SITES if site in command), "coordinator")
        threading.Thread(target=watch, args=(who, process), daemon=True).start()
        return process

    processes.subprocess.Popen = start
    try:
        yield peaks
    finally:
        processes.subprocess.Popen = started


def held(m: int) -> dict[str, float]:
    """Of one run to its models."""
    with tempfile.TemporaryDirectory(prefix="coreg-connected-") as name:
        work = Path(name)
        (work / "federation").mkdir()
        (work / "federation" / "federation.toml").write_text(FEDERATION.format(sites=json.dumps(SITES)))
        processes.enrol(work, SITES)
        tables(work, m)
        about = ("--target", "y", "--id", "id", "--policy", "peers.toml")
        agents = {site: ["--data", f"{site}.csv", "--output", f"{site}.model", *about] for site in SITES}
        with watched() as peaks:
            processes.together(work, "memory", ["run", "federation/federation.toml"], agents)
        return {"m": m, "agent": max(peaks[site] for site in SITES), "coordinator": peaks["coordinator"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--write", action="store_true", help="keep them in docs/performance.json")
    options = parser.parse_args()
    rows = []
    for m in options.sizes:
        rows.append(held(m))
        print(json.dumps(rows[-1]), flush=True)
    if options.write:
        known = json.loads(FIGURES.read_text(encoding="utf-8"))
        FIGURES.write_text(json.dumps(known | {"connected": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
