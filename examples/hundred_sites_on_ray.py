"""Simulate 100 sites on Ray.

Each site has 10 labelled rows, 300 shared rows and five columns of its own, which all depend on the
same causes of the target. Ray spreads the sites over all cores of this machine. The federation
trains coRLSR. Then the same federation runs in one process. Both end on the same bits, so you can
develop in one process and scale later. Ray pays with many cores or a cluster; on two cores it is no
faster. Needs the extra `sim`.

How to read it: each point is a site. Below the diagonal, the site's own model errs less after
joining.

    python examples/hundred_sites_on_ray.py [--quick]      # --quick: 8 sites
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from coreg_core.objectives.agreement import Agreement
from coreg_federation import plan_for, simulate
from coreg_sim.over_ray import OverRay, connected
from coreg_sim.problems import generated
from coreg_sim.simulate import held_out_errors
from examples.demo.svg import Plot, Series, draw

if sys.argv[1:] not in ([], ["--quick"]):
    raise SystemExit(__doc__)
if find_spec("ray") is None:
    raise SystemExit("Ray is not installed: pip install '.[sim]' in the clone of coreg.")

sites = 8 if "--quick" in sys.argv else 100
problem = generated(n_sites=sites, n_labelled=10, n_unlabelled=300, n_features=5, seed=0)
plan = plan_for(
    problem, Agreement(form="semi-parametric", bandwidth="loo", ridge="loo", coupling=(1e-4,))
)

with connected(
    instead="run the simulation in one process"
) as cluster:  # address="auto" joins a cluster that runs
    run = simulate(problem, plan, hosting=OverRay(cluster))
here = simulate(problem, plan)
joined = held_out_errors(problem, run.solutions)
alone = held_out_errors(problem, run.alone)
print(
    f"{sites} sites on {cluster.cpus} cores: {run.outcome.name}; {run.seconds:.1f} s on Ray,"
    f" {here.seconds:.1f} s in one process"
)
print("same bits on Ray and in one process:", np.array_equal(run.predictions, here.predictions))
print(f"mean error: {np.mean(alone):.3f} alone, {np.mean(joined):.3f} joined; ", end="")
print(f"{np.mean(np.array(joined) < np.array(alone)):.0%} of the sites gain")
points = Series("site", tuple(alone), tuple(joined))
plot = Plot(
    "sites",
    f"Error of each of {sites} sites",
    "error alone",
    "error joined",
    (points,),
    diagonal=True,
)
Path("hundred_sites_on_ray.svg").write_text(draw(plot), encoding="utf-8")
