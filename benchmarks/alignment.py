"""Time and memory of an alignment by real agents under mutual TLS, beside the bare multiplications
on one core.

    python benchmarks/alignment.py [--sites 5 2 --ids 100000 1000000] [--write]

Each site lists ids that are drawn from 1.4 times as many. Agents and coordinator are processes on
this machine. They are measured from their start until each site has the shared ids; the training
that follows is cut off. --write keeps the figures in benchmarks/results/alignment.json, from which
`tools/docs.py` makes the page's table.
"""

import json
import signal
import subprocess
import threading
import time
from pathlib import Path

from harness import arguments, cpu_of, folder, keep, least, memory, show  # before numpy

# isort: split
import numpy as np

from examples.demo import processes
from site_agent.id_points import exponents, multiplied, points_of
from site_agent.machine.alignment import SIZES, size_class

OF = 1.4
STUDY = (
    '[study]\nname = "people"\n[model]\nform = "linear"\ncoupling = 0.1\n[alignment]\nmax_ids ='
    " {}\n"
)
processes.DEADLINE = 3600.0


def prepared(work: Path, n_sites: int, n_ids: int) -> list[str]:
    """The federation, its study, and a table and a policy of each site; returns the sites."""
    rng = np.random.default_rng(0)
    sites = [f"site-{v}" for v in range(n_sites)]
    processes.create(work, sites)
    (work / "people.toml").write_text(STUDY.format(n_ids))
    for site in sites:
        ids = rng.permutation(int(OF * n_ids))[:n_ids].tolist()
        rows = (f"person-{i:08d},{i % 7},{i % 5 if at < 20 else ''}\n" for at, i in enumerate(ids))
        (work / f"{site}.csv").write_text("id,x,y\n" + "".join(rows))
        (work / site).mkdir()
        (work / site / "policy.toml").write_text(f"max_alignment_ids = {n_ids}\n")
    return sites


def measured(n_sites: int, n_ids: int) -> dict[str, float]:
    alive: list[subprocess.Popen[bytes]] = []
    began = [0.0]
    found = dict[str, float]()

    def started(_who: str, process: subprocess.Popen[bytes]) -> None:
        alive.append(process)
        began[0] = time.perf_counter()  # of the last one

    def watch(work: Path) -> None:
        while len(files := [*work.glob("*/identity/aligned/*.json")]) < n_sites:
            time.sleep(0.02)
        found["seconds"] = time.perf_counter() - began[0]
        found["cpu"] = sum(cpu_of(process.pid) for process in alive)
        found["memory"] = max(memory(process=process.pid) for process in alive)
        for process in alive:
            process.send_signal(signal.SIGKILL)
        [shared] = {len(json.loads(file.read_text())["ids"]) for file in files}
        found["shared"] = shared

    with folder() as work:
        sites = prepared(work, n_sites, n_ids)
        watching = threading.Thread(target=watch, args=(work,), daemon=True)
        watching.start()
        try:
            agents = {site: ["--data", f"../{site}.csv"] for site in sites}
            processes.together(
                work, "people", ["run", "fed", "--study", "people.toml"], agents, started=started
            )
        except processes.DemoFailed:
            if "seconds" not in found:
                raise
        watching.join()
    size = SIZES[size_class(n_ids)]
    points = points_of([str(i) for i in range(2_000)], "x")
    secret = exponents(b"x")
    each = least(lambda: multiplied(points, secret.passing))[0] / len(points)
    return {
        "sites": n_sites,
        "ids": n_ids,
        "shared": found["shared"],
        "expected": n_ids * OF ** (1 - n_sites),
        "padded": size,
        "seconds": found["seconds"],
        "cpu": found["cpu"],
        "memory": found["memory"],
        "bare": each * size * n_sites * (n_sites + 1),
    }


def main() -> None:
    options = arguments(__doc__, write=False, sites=[5, 2], ids=[100_000, 1_000_000])
    rows = [show(measured(*case)) for case in zip(options.sites, options.ids, strict=True)]
    if options.write:
        keep("benchmarks/results/alignment.json", rows=rows)


if __name__ == "__main__":
    main()
