"""An additive training over gRPC and mutual TLS, as processes: exchanges, seconds and bytes of each
phase.

    python benchmarks/additive_service.py [--sites 3] [--common 442] [--labels 60]

The script runs the operators' commands: `init`, `run`, `join`, `coreg-agent`. The time is the
coordinator's, from the first question to the last. Joining, reading tables and saving models are
reported separately.
"""

import csv
import json
import resource

import numpy as np
from harness import arguments, folder

from examples.demo import processes
from examples.demo.processes import create, together

# the ids are equal
STUDY = "[study]\nname = 'additive'\n[model]\nobjective = 'additive'\n[alignment]\nalign = false\n"
processes.DEADLINE = 900.0  # many individuals take longer than a demo waits


def tables(folder, sites, common, labels):
    """Parts of one smooth function: each site has two columns, correlated with the others', and
    labels of its own individuals.
    """
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(common, 2 * len(sites)))
    X = hidden @ (np.eye(2 * len(sites)) + 0.3 * rng.normal(size=(2 * len(sites),) * 2))
    y = np.sin(X[:, 0]) + sum(X[:, 2 * v] + 0.5 * X[:, 2 * v + 1] ** 2 for v in range(len(sites)))
    y += 0.2 * rng.normal(size=common)
    for v, site in enumerate(sites):
        for name, rows in (
            (site, range(labels * v, labels * (v + 1))),
            (f"{site}-shared", range(common)),
        ):
            with (folder / f"{name}.csv").open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["id", "a", "b", "y"])
                for i in rows:
                    writer.writerow(
                        [f"p{i}", *X[i, 2 * v : 2 * v + 2], y[i] if name == site else ""]
                    )


def spent(events):
    """Megabytes and seconds of some questions."""
    figures = [((e["bytes_sent"] + e["bytes_received"]) / 1e6, e["seconds"]) for e in events]
    return [sum(each) for each in zip(*figures, strict=True)]


def main():
    given = arguments(__doc__, sites=3, common=442, labels=60)
    sites = [f"site-{v}" for v in range(given.sites)]
    with folder() as work:
        create(work, sites)
        tables(work, sites, given.common, given.labels)
        (work / "additive.toml").write_text(STUDY)
        agents = {
            site: ["--data", f"../{site}.csv", "--unlabelled", f"../{site}-shared.csv"]
            for site in sites
        }
        wall = together(
            work, "additive", ["run", "fed", "--study", "additive.toml", "--json"], agents
        )
        lines = (work / "additive.log").read_text().splitlines()
    events = [json.loads(line) for line in lines if line.startswith("{")]
    end = events[-1]
    questions = [event for event in events if event["event"] == "round"]
    print(
        f"{given.sites} sites, {given.common} common individuals, {given.labels} labels each:"
        f" {end['stop']}"
    )
    for phase in dict.fromkeys(event["phase"] for event in questions):
        print(
            f"  {phase:<20}"
            f" {'{:>8.2f} MB {:>7.2f} s'.format(*spent(e for e in questions if e['phase'] == phase))}"
        )
    sent, seconds = spent(questions)
    print(
        f"  {len(questions)} exchanges {sent:>18.2f} MB {seconds:>7.2f} s; {wall:.1f} s with"
        " joining"
    )
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024  # KiB on Linux
    print(f"  at most {most:.0f} MiB in a process")


if __name__ == "__main__":
    main()
