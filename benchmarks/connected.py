"""Peak memory of an agent and the coordinator in a real run: three masked sites, each a process,
over mutual TLS.

    python benchmarks/connected.py [--sizes 10000 100000] [--write]

The script runs the operators' commands on tables of 100 labelled rows and 8 columns, and reads the
kernel's record of each process's peak until it ends. --write keeps them in
benchmarks/results/performance.json.
"""

import contextlib
import random
import subprocess
import threading
import time
from pathlib import Path

from harness import PERFORMANCE, arguments, folder, keep, memory, show

from examples.demo import processes

SITES = ("east", "north", "west")
LABELLED = 100
COLUMNS = 8
NUMBERS = "%.5f"
STUDY = """\
[study]
name = "memory"
[model]
form = "semi-parametric"
coupling = 0.1
label_units = "centred"
[alignment]
align = false
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


def held(m: int) -> dict[str, float]:
    """The peaks, in bytes, of the processes of one run to its models."""
    peaks: dict[str, int] = {}

    def watch(who: str, process: subprocess.Popen) -> None:
        while process.poll() is None:
            with contextlib.suppress(OSError, StopIteration):  # the process ended
                peaks[who] = max(peaks.get(who, 0), memory(process=process.pid))
            time.sleep(0.02)

    with folder() as work:
        processes.create(work, SITES)
        tables(work, m)
        (work / "memory.toml").write_text(STUDY)
        agents = {site: ["--data", f"../{site}.csv"] for site in SITES}
        watched = lambda *both: threading.Thread(target=watch, args=both, daemon=True).start()  # noqa: E731
        processes.together(
            work, "memory", ["run", "fed", "--study", "memory.toml"], agents, started=watched
        )
    return {
        "m": m,
        "agent": max(peaks[site] for site in SITES),
        "coordinator": peaks["coordinator"],
    }


def main() -> None:
    options = arguments(__doc__, sizes=[10_000, 100_000], write=False)
    rows = [show(held(m)) for m in options.sizes]
    if options.write:
        keep(PERFORMANCE, connected=rows)


if __name__ == "__main__":
    main()
