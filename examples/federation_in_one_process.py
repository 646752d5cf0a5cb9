"""A federation in one process, beside the solution on pooled data.

Four sites train coRLSR. Each site has other columns and its own labelled rows. The sites exchange
predictions of 200 shared rows, never data. The picture shows after each round how far the objective
can be from its centralised minimum, for several couplings. Verified rounds certify the value, among
them the last; the other rounds estimate it.

How to read it: each line ends below the tolerance, and a larger coupling takes more rounds. The
printed error is the distance from the closed form, which reads all data. It is below the certified
bound.

    python examples/federation_in_one_process.py [--quick]
"""

import sys
from pathlib import Path

import numpy as np

from coreg_core.objectives.agreement import Agreement
from coreg_federation import plan_for, simulate
from coreg_sim.closed_form import closed_form
from coreg_sim.problems import generated
from examples.demo.svg import Plot, Series, draw

if sys.argv[1:] not in ([], ["--quick"]):
    raise SystemExit(__doc__)

couplings = (0.01, 1.0) if "--quick" in sys.argv else (0.001, 0.01, 0.1, 1.0)

problem = generated(n_sites=4, n_labelled=30, n_unlabelled=200, n_features=5, seed=0)
lines = []
for coupling in couplings:
    plan = plan_for(problem, Agreement(coupling=(coupling,)))
    run = simulate(problem, plan)
    centralised = closed_form(problem, plan)  # reads all data; only a simulation can
    error = np.linalg.norm(run.predictions - centralised.predictions, axis=1).max()
    print(
        f"coupling {coupling:g}: {run.outcome.name} after {run.rounds} rounds, {run.numbers_sent}"
        f" numbers sent; error {error:.1e}, certified bound {run.certified_prediction_bound:.1e}"
    )
    steps = [step.fields for step in run.taken if step.fields["gap"] is not None]
    rounds = tuple(float(step["round"]) for step in steps)
    gaps = tuple(step["gap"] for step in steps)
    lines.append(Series(f"coupling {coupling:g}", rounds, gaps, "line"))

plot = Plot(
    "gap", "Distance from the centralised minimum", "round", "gap Q − Q*", tuple(lines), log_y=True
)
Path("federation_in_one_process.svg").write_text(draw(plot), encoding="utf-8")
