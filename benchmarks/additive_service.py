"""A tuned model of the additive objective over gRPC and mutual TLS, as processes: rounds, seconds and bytes of each phase.

    python benchmarks/additive_service.py [--instances 10000] [--sites 4] [--labels 100]

Everything is what an operator types: an authority, signed sites, tables, `coreg-coordinator run`, `coreg-agent`. The time is the
coordinator's, from the first question to the last; joining, reading tables and the model's way to the disk stand beside it.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")]),
    "OPENBLAS_NUM_THREADS": "1",
}


def command(module, *arguments):
    return [sys.executable, "-c", f"from {module} import main; main()", *map(str, arguments)]


def well(cwd, module, *arguments):
    subprocess.run(command(module, *arguments), cwd=cwd, env=ENVIRONMENT, check=True, stdout=subprocess.DEVNULL)


def tables(folder, sites, m, n):
    """Parts of one smooth function: each site has two columns, correlated with the others'."""
    rng = np.random.default_rng(0)
    total = m + n * len(sites)
    hidden = rng.normal(size=(total, 2 * len(sites)))
    X = hidden @ (np.eye(2 * len(sites)) + 0.3 * rng.normal(size=(2 * len(sites),) * 2))
    y = np.sin(X[:, 0]) + sum(X[:, 2 * v] + 0.5 * X[:, 2 * v + 1] ** 2 for v in range(len(sites)))
    y += 0.2 * rng.normal(size=total)
    for v, site in enumerate(sites):
        rows = [*range(m), *range(m + n * v, m + n * (v + 1))]
        with (folder / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "a", "b", "y"])
            for i in rows:
                writer.writerow(
                    [f"p{i}", *map(repr, X[i, 2 * v : 2 * v + 2].tolist()), "" if i < m else repr(float(y[i]))]
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--labels", type=int, default=100)
    given = parser.parse_args()
    sites = [f"site-{v}" for v in range(given.sites)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        well(folder, "coordinator.cli.app", "init", "co")
        for site in sites:
            well(folder, "site_agent.cli.app", "enroll", "--name", site, "--identity", site)
            well(folder, "coordinator.cli.app", "sign", "--identity", "co", f"{site}/site.csr")
            well(folder, "site_agent.cli.app", "enroll", "--identity", site, "--install", f"co/{site}.pem")
        tables(folder, sites, given.instances, given.labels)
        (folder / "co" / "federation.toml").write_text(
            f"[federation]\nname = 'benchmark'\nsites = {json.dumps(sites)}\n"
            "[model]\nobjective = 'additive'\n[service]\nlisten = '127.0.0.1:0'\n"
        )
        (folder / "policy.toml").write_text('objectives = ["additive"]\n')
        began = time.perf_counter()
        coordinator = subprocess.Popen(
            command("coordinator.cli.app", "run", "co/federation.toml", "--port-file", "port", "--json"),
            cwd=folder,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
        while not (folder / "port").exists():
            time.sleep(0.05)
        port = (folder / "port").read_text().strip()
        agents = [
            subprocess.Popen(
                command(
                    "site_agent.cli.app", "--data", f"{site}.csv", "--target", "y", "--id", "id", "--identity", site,
                    "--coordinator", f"127.0.0.1:{port}", "--output", f"{site}.model", "--policy", "policy.toml",
                ),
                cwd=folder, env=ENVIRONMENT, stderr=subprocess.DEVNULL,
            )
            for site in sites
        ]  # fmt: skip
        said = [json.loads(line) for line in coordinator.communicate()[0].splitlines()]
        codes = [agent.wait() for agent in agents]
        wall = time.perf_counter() - began
        end = said[-1]
        print(f"{given.sites} sites, {given.labels} labels each, {given.instances} shared instances: {end['stop']}")
        for phase, spent in end.get("phases", {}).items():
            megabytes = spent["bytes"] / 1e6
            print(f"  {phase:<14} {spent['rounds']:>3} rounds {megabytes:>8.1f} MB {spent['seconds']:>7.2f} s")
        questions = [event for event in said if event["event"] == "round"]
        seconds, sent = (sum(event[key] for event in questions) for key in ("seconds", "bytes"))
        print(
            f"  {'all':<14} {end['rounds']:>3} rounds {sent / 1e6:>8.1f} MB {seconds:>7.2f} s; {wall:.1f} s with joining"
        )
        print(f"  agents ended with {codes}; {json.dumps(end['last'])}")


if __name__ == "__main__":
    main()
