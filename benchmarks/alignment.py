"""Time and memory of an alignment by real agents under mutual TLS, beside the bare multiplications on one core.

    python benchmarks/alignment.py [--sites 5 2 --ids 100000 1000000] [--write]

Each site lists ids that are drawn from 1.4 times as many. Agents and coordinator are processes on this machine.
--write keeps the figures in benchmarks/results/alignment.json, from which `tools/docs.py` makes the page's table.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from harness import arguments, folder, keep, least, show  # before numpy

# isort: split
import numpy as np

from coreg_core.computation.alignment import SIZES, size_class
from site_agent.id_points import exponents, multiplied, points_of

BIN, PORT, OF = Path(sys.executable).parent, 7620, 1.4
STUDY = '[study]\nname = "people"\n\n[model]\nobjective = "alignment"\nmax_ids = {}\n'


def command(work: Path, *words: object, log: str = "setup.log") -> subprocess.Popen[bytes]:
    program, *rest = map(str, words)
    with (work / log).open("ab") as file:
        return subprocess.Popen([BIN / program, *rest], cwd=work, stdout=file, stderr=subprocess.STDOUT)


def done(work: Path, *words: object) -> None:
    assert command(work, *words).wait(120) == 0, (work / "setup.log").read_text()


def prepared(work: Path, n_sites: int, n_ids: int) -> list[str]:
    """Tables, identities, pins and the study; returns the sites."""
    rng, sites = np.random.default_rng(0), [f"site-{v}" for v in range(n_sites)]
    for site in sites:
        ids = rng.permutation(int(OF * n_ids))[:n_ids].tolist()
        (work / f"{site}.csv").write_text("id,x\n" + "".join(f"person-{i:08d},1\n" for i in ids))
    named = [word for site in sites for word in ("--site", site)]
    done(work, "coreg-coordinator", "init", "federation", "--name", "alignment", *named)
    for site in sites:
        done(work, "coreg-agent", "enroll", "--name", site, "--identity", site)
        done(work, "coreg-coordinator", "sign", "--identity", "federation", f"{site}/site.csr")
        done(work, "coreg-agent", "enroll", "--identity", site, "--install", f"federation/{site}.pem")
    done(work, "coreg-agent", "init")
    policy = work / "policy.toml"
    policy.write_text(f"max_alignment_ids = {n_ids}\n" + policy.read_text())
    pems = [f"federation/{site}.pem" for site in sites]
    done(work, "coreg-agent", "peers", "--pin", "--write", "policy.toml", "--identity", sites[0], *pems)
    (work / "align.toml").write_text(STUDY.format(n_ids))
    return sites


def measured(n_sites: int, n_ids: int) -> dict[str, float]:
    with folder() as work:
        sites, at = prepared(work, n_sites, n_ids), f"127.0.0.1:{PORT}"
        began = time.perf_counter()
        run = ("run", "federation/federation.toml", "--study", "align.toml", "--listen", at)
        processes = [command(work, "coreg-coordinator", *run, log="coordinator.log")]
        for site in sites:
            table = ("--data", f"{site}.csv", "--id", "id", "--identity", site, "--policy", "policy.toml")
            agent = ("align", *table, "--coordinator", at, "--output", f"{site}.json")
            processes.append(command(work, "coreg-agent", *agent, log=f"{site}.log"))
        used = [os.wait4(process.pid, 0) for process in processes]
        seconds = time.perf_counter() - began
        assert all(status == 0 for _, status, _ in used), (work / "coordinator.log").read_text()
        [shared] = {len(json.loads((work / f"{site}.json").read_text())["ids"]) for site in sites}
    size = SIZES[size_class(n_ids)]
    points, secret = points_of([str(i) for i in range(2_000)], "x"), exponents(b"x")
    each = least(lambda: multiplied(points, secret.passing))[0] / len(points)
    return {
        "sites": n_sites,
        "ids": n_ids,
        "shared": shared,
        "expected": n_ids * OF ** (1 - n_sites),
        "padded": size,
        "seconds": seconds,
        "cpu": sum(usage.ru_utime + usage.ru_stime for _, _, usage in used),
        "memory": max(1024 * usage.ru_maxrss for _, _, usage in used),
        "bare": each * size * n_sites * (n_sites + 1),
    }


def main() -> None:
    options = arguments(__doc__, write=False, sites=[5, 2], ids=[100_000, 1_000_000])
    rows = [show(measured(*case)) for case in zip(options.sites, options.ids, strict=True)]
    if options.write:
        keep("benchmarks/results/alignment.json", rows=rows)


if __name__ == "__main__":
    main()
