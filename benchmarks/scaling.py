"""The cost of a round against sites, shared instances and couplings: in one process, over Ray, and
the share of algebra.

    python benchmarks/scaling.py [--out benchmarks/results/scaling.json] [--only rounds columns
    exact stacked] [--small]

Every round is a whole one through the driver, the machine and the sites, semi-parametric with 50
labelled rows a site unless stated otherwise. In one process the algebra is the time of the sites'
answers. Medians over rounds after the first two. Ray's processes run at the priority of this one,
not at Ray's default of 15 below, so that load on the machine affects both alike. Seconds are this
machine's; an existing result for the same case is replaced.
"""

import json
import os
import statistics
import time
from contextlib import contextmanager

import numpy as np
from harness import ROOT, arguments, keep, least, machine, show

from benchmarks.stacked_system import solve_stacked, textbook_view
from coordinator.transports import InProcess
from coreg_core.kernels import make_kernel
from coreg_core.messages import Step
from coreg_core.objectives.agreement import Agreement
from coreg_core.terms import Iteration
from coreg_core.threads import pin_threads
from coreg_sim.over_ray import OverRay, connected
from coreg_sim.problems import generated
from coreg_sim.simulate import Hosted, SharedFold, SimulatedSite, plan_for, simulate

ROUNDS = 8
# (sites, shared instances)
GRID = ((10, 10_000), (100, 10_000), (1000, 10_000), (16, 1_000), (16, 100_000), (4, 1_000_000))
COLUMNS = (1, 8, 64)
EXACT = ((4, 1000), (4, 2000), (4, 4000))
STACKED = ((4, 250), (4, 500), (4, 1000), (4, 2000))


class Timed:
    """Records the seconds of each round and of its algebra (0 over Ray)."""

    def __init__(self):
        self.rounds = []
        self._last = 0.0

    def __call__(self, notice):
        if notice.name == "round":
            now = TimedSite.seconds
            self.rounds.append((notice.fields["seconds"], now - self._last))
            self._last = now


class TimedSite(SimulatedSite):
    seconds = 0.0

    def handle(self, message):
        since = time.perf_counter()
        answers = super().handle(message)
        if isinstance(message, Step):
            TimedSite.seconds += time.perf_counter() - since
        return answers


@contextmanager
def here(data):
    fold = SharedFold()
    sites = {name: TimedSite(name, private, fold) for name, private in data.items()}
    yield Hosted(InProcess(sites), lambda name: sites[name].result)


def measured(problem, plan, hosting) -> dict:
    TimedSite.seconds = 0.0
    timed = Timed()
    whole, run = least(lambda: simulate(problem, plan, timed, hosting), 1)
    rounds = timed.rounds[2:]
    seconds, inside = (statistics.median(column) for column in zip(*rounds, strict=True))
    beyond = statistics.median(a - b for a, b in rounds)
    return {
        "seconds": seconds,
        "algebra": inside,
        "beyond": beyond,
        "whole": whole,
        "stop": run.outcome.name,
    }


def both(cluster, problem, plan) -> dict:
    ray = measured(problem, plan, OverRay(cluster))
    return {
        "process": measured(problem, plan, here),
        "ray": {key: ray[key] for key in ("seconds", "whole", "stop")},
    }


def fixed_rounds(problem, form="semi-parametric", couplings=(0.01,)):
    """A tolerance of 0, so that the run continues to the last round."""
    return plan_for(
        problem,
        Agreement(form=form, coupling=couplings),
        Iteration("conjugate-gradients", 0.0, 0.0, ROUNDS),
    )


def rounds(cluster, small):
    for M, m in GRID[:2] if small else GRID:
        problem = generated(M, 50, m, 5, seed=0)
        yield {"sites": M, "m": m, "k": 1}, both(cluster, problem, fixed_rounds(problem))


def columns(cluster, small):
    problem = generated(16, 50, 10_000, 5, seed=0)
    for k in COLUMNS[:2] if small else COLUMNS:
        couplings = tuple(np.geomspace(1e-3, 1, k).tolist()) if k > 1 else (0.01,)
        yield (
            {"sites": 16, "m": 10_000, "k": k},
            both(cluster, problem, fixed_rounds(problem, couplings=couplings)),
        )


def exact(cluster, small):
    for M, m in EXACT[:1] if small else EXACT:
        problem = generated(M, 50, m, 5, seed=0)
        yield {"sites": M, "m": m, "k": 1}, both(cluster, problem, fixed_rounds(problem, "exact"))


def stacked(_cluster, small):
    """The paper's Proposition 3.1, whole: a matrix of (M (n + m))²; its kernel narrow, so that it
    is not singular.
    """
    pin_threads(1)
    for M, m in STACKED[:2] if small else STACKED:
        problem = generated(M, 50, m, 5, seed=0)
        kernel = make_kernel("gaussian", bandwidth=0.5)

        def solved(problem=problem, kernel=kernel):
            views = [
                textbook_view(kernel, d.X, d.y, d.Z, 1.0, exact=True)
                for d in problem.sites.values()
            ]
            solve_stacked(views, 0.1)

        yield (
            {"sites": M, "m": m},
            {"seconds": least(solved, 1)[0], "bytes": 8 * (M * (50 + m)) ** 2},
        )


PARTS = {"rounds": rounds, "columns": columns, "exact": exact, "stacked": stacked}


def main() -> None:
    options = arguments(
        __doc__, out="benchmarks/results/scaling.json", only=list(PARTS), small=False
    )
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 - Ray's own spelling; its default is 15
    cases = (
        json.loads((ROOT / options.out).read_text())["cases"]
        if (ROOT / options.out).exists()
        else []
    )
    with connected(instead="install the extra sim") as cluster:
        for part in options.only:
            for case, figures in PARTS[part](cluster, options.small):
                entry = show(
                    {"part": part, **case, **figures, "load": round(os.getloadavg()[0], 1)}
                )
                keys = ("part", "sites", "m", "k")
                cases = [
                    c for c in cases if [c.get(k) for k in keys] != [entry.get(k) for k in keys]
                ] + [entry]
                keep(options.out, machine=machine(), cases=cases)


if __name__ == "__main__":
    main()
