r"""Search directions in float32 beside float64: rounds, bytes, and how far each end is from the closed form.

    python benchmarks/directions.py [--write]      --write keeps it in docs/performance.json

Whole runs through both machines, in the clear and under masks, to two tolerances: coreg-sim's own (gap 1e-10 of Q(0), 1e-5 an
instance), and one near what float64 allows. And what is best rounded: the schedule over the same views in memory, with nothing
rounded, with s − R s rounded, as sites do (singles.py), and with R s itself.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from coreg_core.agreement.float32 import as_told, rounded
from coreg_core.agreement.objective import consensus_weight
from coreg_core.agreement.schedules import make_schedule
from coreg_core.agreement.schedules.schedule import Stop, Terms, stops_of
from coreg_core.agreement.views import View
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.plan import Agreement, Answers, Form, Iteration, Wire
from coreg_sim.federation.problems import Problem, generated
from coreg_sim.federation.simulate import closed_form, factored, plan_for, simulate

FIGURES = Path(__file__).parents[1] / "docs" / "performance.json"
N, D = 50, 5
CASES: tuple[tuple[Form, int, int, float], ...] = (
    ("exact", 4, 500, 0.1),
    ("exact", 4, 500, 10.0),
    ("semi-parametric", 4, 2000, 0.1),
    ("semi-parametric", 4, 2000, 10.0),
    ("semi-parametric", 4, 2000, 1000.0),
    ("semi-parametric", 16, 2000, 0.1),
    ("semi-parametric", 16, 2000, 1.0),
    ("landmarks", 4, 2000, 1.0),
)
TOLERANCES = ((1e-10, 1e-5), (1e-18, 1e-9))  # of Q(0), and of predictions: an instance
MOST = 2000


ROUNDED: dict[str, Callable[[Arr, Arr], Arr]] = {
    "nothing": lambda _, answer: answer,
    "difference": as_told,
    "answer": lambda _, answer: rounded(answer),
}


def in_memory(problem: Problem, views: list[View], coupling: float, iteration: Iteration, what: str) -> int | None:
    """Rounds where so much of each answer to a direction is rounded to float32; None where they did not converge."""
    bounds, y = tuple(v.bound() for v in views), [d.y - d.y.mean() for d in problem.sites.values()]
    terms = Terms(
        (coupling,),
        bounds,
        float(sum(t @ t for t in y)),
        iteration.tolerance,
        iteration.prediction_tolerance,
        MOST,
        tuple(v.response_error(consensus_weight(coupling, len(views))) for v in views),
        singles=what != "nothing",
    )
    schedule = make_schedule("conjugate-gradients", terms)
    state = schedule.start(views[0].n_unlabelled)
    while not schedule.finished(state):
        query = schedule.query(state)
        told = ROUNDED["nothing" if query.verifies else what]
        answers = [told(query.targets, v.respond(query.targets, query.weights, query.part)) for v in views]
        state = schedule.step(state, sum(answers))
    return int(state.round) if stops_of(state.stops) == (Stop.CONVERGED,) else None


def measured(form: Form, n_sites: int, m: int, coupling: float) -> list[dict]:
    problem = generated(n_sites, N, m, D, seed=0)
    objective, rows = Agreement(form=form, coupling=(coupling,)), []
    plan = plan_for(problem, objective)
    views, truth = factored(problem.sites, plan), closed_form(problem, plan).predictions
    condition = 1.0 + consensus_weight(coupling, n_sites) * max(v.bound() for v in views)
    for gap, each in TOLERANCES:
        iteration = Iteration(tolerance=gap, prediction_tolerance=each * float(np.sqrt(m)), max_rounds=MOST)
        row = {"form": form, "sites": n_sites, "m": m, "coupling": coupling, "condition": condition, "each": each}
        kinds: tuple[tuple[str, Wire, Answers], ...] = (
            ("float64", "float64", "clear"),
            ("float32", "float32", "clear"),
            ("float64, sums", "float64", "sums"),
            ("float32, sums", "float32", "sums"),
        )
        for name, wire, answers in kinds:
            found = simulate(problem, plan_for(problem, objective, replace(iteration, wire=wire), answers=answers))
            off = float(np.linalg.norm(found.predictions - truth, axis=1).max())
            # A true bound, but for the closed form's own rounding.
            assert off <= found.certified_prediction_bound + 1e-11 * float(np.linalg.norm(truth)), (row, name, off)
            row[name] = {
                "stop": found.outcome.name,
                "rounds": found.rounds,
                "bytes": found.bytes_sent,
                "true error": off / float(np.sqrt(m)),
            }
        row["in memory"] = {what: in_memory(problem, views, coupling, iteration, what) for what in ROUNDED}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep it in docs/performance.json")
    options = parser.parse_args()
    found = {"directions": [row for case in CASES for row in measured(*case)]}
    if options.write:
        known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        FIGURES.write_text(json.dumps(known | found, indent=1) + "\n")


if __name__ == "__main__":
    main()
