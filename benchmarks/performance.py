"""The cost of a round against the limit of this machine, both measured in the same run.

    python benchmarks/performance.py [--quick] [--write]      --write saves
    benchmarks/results/performance.json, for
    docs/research/performance.md

Limits are those of memory: a round that computes little cannot be faster than reading its operands
once, at the speed of a dot product of the same length on as many threads. Each figure is the
smallest of several repetitions, so load on the machine rarely raises it. Ratios hold on any
machine. benchmarks/round_trip.py measures the wire.
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from itertools import cycle

import harness
from harness import PERFORMANCE, ROOT, arguments, keep  # before numpy

# isort: split
import numpy as np

from coreg_core.agreement import solvers
from coreg_core.agreement.closed_form import consensus_closed_form
from coreg_core.agreement.objective import (
    ROUNDING,
    Certificate,
    consensus_certificate,
    consensus_weight,
)
from coreg_core.agreement.solver import SolverTerms
from coreg_core.agreement.solvers import make_solver, run_in_memory
from coreg_core.agreement.views import View, make_view
from coreg_core.kernels import Gaussian
from coreg_core.selection import paper_bandwidth, paper_ridge
from coreg_core.spans import EveryPoint, LabelledPoints, Span
from coreg_core.threads import pin_threads

N = 100
D = 8


def least(work: Callable[[], object], repetitions: int = 7) -> float:
    """Seconds, after one warm-up repetition."""
    work()
    return harness.least(work, repetitions)[0]


def bandwidth() -> float:
    """Bytes per second that a dot product reads from an array much larger than the caches."""
    a = np.ones(25_000_000)
    return a.nbytes / least(lambda: np.dot(a, a), 5)


def view_of(m: int, span: Span, n_weights: int = 1, seed: int = 0) -> View:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D))
    kernel = Gaussian(paper_bandwidth(X))
    ridge = paper_ridge(X)
    Z = rng.normal(size=(m, D))
    return make_view(span, kernel, X, X.sum(axis=1), Z, ridge, n_weights=n_weights)


def rounds_of_answers(m: int, span: Span, speed: float) -> dict:
    """One column at one weight, which reads C twice, or the factor's triangle twice."""
    view = view_of(m, span)
    rng = np.random.default_rng(1)
    target = rng.normal(size=(m, 1))
    weight = np.array([0.1])
    view.respond(target, weight)
    targets = cycle([target, target + 1])  # in turn: the view knows the answer to its last target
    seconds = least(lambda: view.respond(next(targets), weight))
    read = 8.0 * (m * m if isinstance(span, EveryPoint) else 2 * m * view.rank)
    return {"m": m, "rank": view.rank, "seconds": seconds, "limit": read / speed}


def path(m: int, couplings: int) -> dict:
    """A round of as many couplings as there are factors, against the same number of rounds of
    one.
    """
    weights = np.linspace(0.1, 0.9, couplings)
    rng = np.random.default_rng(1)
    view = view_of(m, EveryPoint(), couplings)
    one = view_of(m, EveryPoint())
    targets = cycle([rng.normal(size=(m, couplings)) for _ in range(2)])
    whole = least(lambda: view.respond(next(targets), weights))
    single = least(lambda: one.respond(next(targets)[:, :1], weights[:1]))
    return {"m": m, "couplings": couplings, "seconds": whole, "limit": couplings * single}


def coordinator_step(m: int, columns: int, speed: float) -> dict:
    """One direction; the limit is reading mean, z, r and p, and writing z, r and p."""
    terms = SolverTerms(
        tuple(np.linspace(0.01, 0.1, columns)), (5.0,) * 3, 100.0, 1e-10, 1e-6, 1000
    )
    solver = make_solver("conjugate-gradients", terms)
    total = np.random.default_rng(0).normal(size=(m, columns))
    state = solver.step(solver.start(m), total)
    answer = 1.5 * np.ascontiguousarray(solver.query(state).targets)
    seconds = least(lambda: solver.step(state, answer), 5)
    return {"m": m, "columns": columns, "seconds": seconds, "limit": 7 * 8.0 * m * columns / speed}


def plain_certificate(
    r: float, scale: float, weight: float, bounds: np.ndarray, stays: float | None = None
) -> Certificate:
    """√gap = μ‖r‖√Σb: the general formula."""
    root = weight * (r + ROUNDING * scale) * float(np.sqrt(bounds.sum()))
    return Certificate(root * root, float(np.sqrt(bounds.max())) * root)


def certificate_rounds(ridges: tuple[float, ...], coupling: float) -> dict:
    """Rounds to the same tolerances by the sharp certificate, by the general one, and by the true
    error (closed form).
    """
    rng = np.random.default_rng(3)
    m = 1000
    Z = rng.normal(size=(m, D))
    views = []
    for ridge in ridges:
        X = rng.normal(size=(N, D))
        views.append(
            make_view(LabelledPoints(), Gaussian(paper_bandwidth(X)), X, X.sum(axis=1), Z, ridge)
        )
    bounds = tuple(v.bound() for v in views)
    tolerance = 1e-4
    terms = SolverTerms(
        (coupling,), bounds, 1e3, 1.0, tolerance, 500
    )  # the bound on predictions alone decides
    rounds = {}
    for kind, rule in (("sharp", consensus_certificate), ("general", plain_certificate)):
        solvers.consensus_certificate = rule
        rounds[kind] = run_in_memory(make_solver("conjugate-gradients", terms), views).round
    solvers.consensus_certificate = consensus_certificate
    solver = make_solver("conjugate-gradients", terms)
    best = consensus_closed_form(views, coupling)
    weight = 0.0
    weight = consensus_weight(coupling, len(views))
    models = [v.respond(best[:, None], np.array([weight])) for v in views]
    state = solver.start(m)
    needed = 0
    while not (needed or solver.finished(state)):
        query = solver.query(state)
        state = solver.step(
            state, sum(v.respond(query.targets, query.weights, query.part) for v in views)
        )
        answers = [v.respond(np.ascontiguousarray(state.z), np.array([weight])) for v in views]
        if max(np.linalg.norm(a - b) for a, b in zip(answers, models, strict=True)) <= tolerance:
            needed = state.round
    about = {"sites": len(ridges), "coupling": coupling, "spread": max(bounds) / min(bounds)}
    return {**about, **rounds, "true": needed}


def child(code: str) -> dict:
    """Run the code in a process of its own, for its peak memory; the code prints seconds."""
    program = (
        f"{code}\nimport sys; sys.path.insert(0, 'benchmarks')\nfrom harness import"
        " memory\nprint(memory())"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    *seconds, memory = out.split()
    return {"seconds": float(seconds[0]) if seconds else None, "mb": float(memory) / 2**20}


EXACT = """
import sys, time
sys.path.insert(0, "benchmarks")
import numpy as np
from performance import view_of, EveryPoint
began = time.perf_counter()
view = view_of({m}, EveryPoint())
view.respond(np.ones(({m}, 1)), np.array([0.1]))
print(time.perf_counter() - began)
"""
SPAN = EXACT.replace("EveryPoint()", "LabelledPoints()").replace("EveryPoint", "LabelledPoints")
AGENT = "import site_agent.cli.app, site_agent.data.prepare, site_agent.service.app"


def main() -> None:
    options = arguments(__doc__, quick=False, write=False)
    pin_threads(1)
    quick = options.quick
    speed = bandwidth()
    about = {
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "bytes/s": speed,
    }
    spans = (100_000,) if quick else (100_000, 300_000, 1_000_000)
    alone = {"agent, before its data": AGENT}
    if not quick:
        alone |= {
            "exact, m = 10^4": EXACT.format(m=10_000),
            "semi-parametric, m = 10^6": SPAN.format(m=1_000_000),
        }
    found = {
        "machine": about,
        "semi-parametric": [rounds_of_answers(m, LabelledPoints(), speed) for m in spans],
        "exact": [
            rounds_of_answers(m, EveryPoint(), speed)
            for m in ((2000,) if quick else (2000, 4000, 10_000))
        ],
        "path": [path(1000, k) for k in (8, 9, 16)],
        "step": [coordinator_step(100_000 if quick else 1_000_000, k, speed) for k in (1, 8, 16)],
        "rounds": [
            certificate_rounds(ridges, coupling)
            for ridges in ((1.0,) * 3, (1.0,) * 8, (1.0,) * 30, (1.0,) * 7 + (0.001,))
            for coupling in (0.01, 0.1)
        ],
        "set-up": {name: child(code) for name, code in alone.items()},
    }
    print(json.dumps(found, indent=1))
    if options.write:
        keep(PERFORMANCE, **found)


if __name__ == "__main__":
    main()
