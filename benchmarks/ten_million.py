"""Ten million shared instances: two sites and their coordinator in one process, semi-parametric, r = 100, under 20 GiB.

`python benchmarks/ten_million.py --write` runs the federation of the machines to its certificate, and writes
benchmarks/results/ten_million.json: the process's peak of resident memory, seconds in all and a round, what was certified.
``--m`` for fewer. Each site keeps C (m, r) in double precision, 8 GB at m = 10⁷: nothing is taken from the certificate.
"""

import argparse
import json
import os
import resource
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "proto")]

from coordinator.machine.notices import QuestionAnswered  # noqa: E402
from coreg_core.protocol.plan import Agreement, Iteration  # noqa: E402
from coreg_sim.federation.problems import generated  # noqa: E402
from coreg_sim.federation.simulate import Steps, federate, plan_for  # noqa: E402

LABELLED, FEATURES, LIMIT = 100, 5, 20.0


class Clocked(Steps):
    """When each question was answered."""

    def __init__(self):
        super().__init__()
        self.at = []

    def notice(self, notice, measured):
        super().notice(notice, measured)
        if isinstance(notice, QuestionAnswered):
            self.at.append(time.perf_counter())


def peak():
    """GiB of resident memory, at most, so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--m", type=int, default=10_000_000)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    problem = generated(2, LABELLED, options.m, FEATURES, seed=1)
    data = peak()
    iteration = Iteration(tolerance=1e-8, prediction_tolerance=1.0, threads=os.cpu_count() or 1)
    plan = plan_for(problem, Agreement(form="semi-parametric", coupling=(0.01,)), iteration)
    clock, began = Clocked(), time.perf_counter()
    end = federate(problem, plan, clock)
    gaps = [after - before for before, after in zip(clock.at, clock.at[1:], strict=False)]
    found = {
        "m": options.m, "r": LABELLED, "sites": 2, "outcome": end.outcome.name, "rounds": end.last.round,
        "seconds": round(time.perf_counter() - began, 1), "seconds_a_round": round(sorted(gaps)[len(gaps) // 2], 2),
        "certified_prediction_bound_an_instance": float(end.last.prediction_bound[0]) / options.m**0.5,
        "peak_gib": peak(), "peak_gib_of_the_data": data, "limit_gib": LIMIT,
        "load": [round(x, 1) for x in os.getloadavg()], "cores": os.cpu_count(),
    }  # fmt: skip
    print(json.dumps(found))
    if options.write:
        path = ROOT / "benchmarks" / "results" / "ten_million.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if found["peak_gib"] < LIMIT else 1)


if __name__ == "__main__":
    main()
