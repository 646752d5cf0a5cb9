"""An additive training over gRPC and mutual TLS, as processes: exchanges, seconds and bytes of each phase.

    python benchmarks/additive_service.py [--sites 3] [--common 442] [--labels 60]

The script runs an operator's commands: an authority, signed sites, tables, `coreg-coordinator run`, `coreg-agent`. The time is
the coordinator's, from the first question to the last. Joining, reading tables and saving models are reported separately.
"""

import csv
import json
import resource

import numpy as np
from harness import arguments, folder

from examples.demo import processes
from examples.demo.processes import enrol, together

processes.DEADLINE = 900.0  # many individuals take longer than a demo waits


def tables(folder, sites, common, labels):
    """Parts of one smooth function: each site has two columns, correlated with the others', and labels of its own individuals."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(common, 2 * len(sites)))
    X = hidden @ (np.eye(2 * len(sites)) + 0.3 * rng.normal(size=(2 * len(sites),) * 2))
    y = np.sin(X[:, 0]) + sum(X[:, 2 * v] + 0.5 * X[:, 2 * v + 1] ** 2 for v in range(len(sites)))
    y += 0.2 * rng.normal(size=common)
    for v, site in enumerate(sites):
        for name, rows in ((site, range(labels * v, labels * (v + 1))), (f"{site}-shared", range(common))):
            with (folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["id", "a", "b", "y"])
                for i in rows:
                    writer.writerow([f"p{i}", *X[i, 2 * v : 2 * v + 2], y[i] if name == site else ""])


def main():
    given = arguments(__doc__, sites=3, common=442, labels=60)
    sites = [f"site-{v}" for v in range(given.sites)]
    with folder() as work:
        enrol(work, sites)
        tables(work, sites, given.common, given.labels)
        (work / "federation" / "federation.toml").write_text(
            f"[federation]\nname = 'benchmark'\nsites = {json.dumps(sites)}\n"
            "[model]\nobjective = 'additive'\n[service]\nlisten = '127.0.0.1:0'\n"
        )
        (work / "policy.toml").write_text(f'objectives = ["additive"]\n{(work / "peers.toml").read_text()}')
        agents = {
            site: [
                "--data", f"{site}.csv", "--unlabelled", f"{site}-shared.csv", "--target", "y", "--id", "id",
                "--output", f"{site}.model", "--policy", "policy.toml",
            ]
            for site in sites
        }  # fmt: skip
        wall = together(work, "additive", ["run", "federation/federation.toml", "--json"], agents)
        lines = (work / "additive.log").read_text().splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    end, questions = events[-1], [event for event in events if event["event"] == "round"]
    print(f"{given.sites} sites, {given.common} common individuals, {given.labels} labels each: {end['stop']}")
    for phase, spent in end["phases"].items():
        print(f"  {phase:<20} {spent['bytes'] / 1e6:>8.2f} MB {spent['seconds']:>7.2f} s")
    seconds, *both = (sum(event[key] for event in questions) for key in ("seconds", "bytes_sent", "bytes_received"))
    sent = sum(both)
    print(f"  {len(questions)} exchanges {sent / 1e6:>18.2f} MB {seconds:>7.2f} s; {wall:.1f} s with joining")
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # KiB on Linux
    print(f"  at most {most:.0f} MiB in a process")


if __name__ == "__main__":
    main()
