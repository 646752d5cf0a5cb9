"""Machine size for a site.

    python benchmarks/sizing.py [--write]

Of an agreement: memory and CPU seconds to factor and to answer, and bytes per round. Each row runs
in a process of its own, which factors a site's data as the agent does, answers one question in one
column, and reports its peak memory beyond that after its imports. The bytes are of the frames that
carry a sum and the sealed answer to it, as `coreg_wire.transport.codec` makes them.

Of an additive training: all sites train in one process, one after another (as in `coreg-sim run`).
Seconds, bytes and memory are a site's share.

`--write` saves both in benchmarks/results/sizing.json, from which `tools/docs.py` makes the page's
tables.
"""

import platform
import time

import numpy as np
from harness import apart, arguments, keep, memory, show

from coreg_core.messages import Answer, Report, Step, Words
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.outcomes import Outcome
from coreg_core.shapes import TAG_WORDS
from coreg_sim.problems import generated
from coreg_sim.simulate import plan_for, simulate
from coreg_wire.transport.codec import frames_of
from site_agent.machine.agreement import factor
from site_agent.site_data import PrivateData

CASES = (
    ("exact", 200, 1_000), ("exact", 200, 4_000), ("exact", 200, 8_000),
    ("semi-parametric", 500, 10_000),
    ("semi-parametric", 500, 100_000), ("semi-parametric", 2_000, 10_000),
    ("semi-parametric", 100_000, 10_000),
)  # fmt: skip
FEATURES = 10
TRAININGS = ((3, 442), (3, 3_000), (8, 20_000), (8, 100_000))  # sites, shared individuals
LABELLED = 60  # individuals at each site


def measured(form: str, n: int, m: int) -> dict[str, float]:
    rng = np.random.default_rng(0)
    data = PrivateData(
        rng.normal(size=(n, FEATURES)), rng.normal(size=n), rng.normal(size=(m, FEATURES)), ""
    )
    before = memory()
    began = time.process_time()
    view = factor(Agreement(form=form), data, data.y - data.y.mean())
    weights = np.array([0.06])
    targets = rng.normal(size=(m, 1))
    view.respond(targets, weights)  # the first answer makes the factor of its weight
    factored = time.process_time() - began
    targets = rng.normal(size=(m, 1))
    began = time.process_time()
    view.respond(targets, weights)
    answered = time.process_time() - began
    words = Words(np.zeros(m + TAG_WORDS, dtype=np.uint64))
    answer = Answer("run", 0, 0, Report(), summed=words)
    frames = [*frames_of(Step("run", 0, 0, summed=words)), *frames_of(answer)]
    return {
        "memory": memory() - before,
        "factor_seconds": factored,
        "answer_seconds": answered,
        "round_bytes": sum(map(len, frames)),
    }


def trained(sites: int, shared: int) -> dict[str, float]:
    without_label = shared - sites * LABELLED
    problem = generated(sites, LABELLED, without_label, FEATURES, 0, common=True)
    before = memory()
    run = simulate(problem, plan_for(problem, Additive()))
    assert run.outcome is Outcome.CONVERGED
    return {
        "seconds": run.seconds / sites,
        "sent": sum(step.fields["bytes_received"] for step in run.taken) / sites,
        "memory": (memory() - before) / sites,
    }


def main() -> None:
    options = arguments(__doc__, write=False)
    additive = [
        show({"sites": sites, "shared": shared, **apart(trained, sites, shared)})
        for sites, shared in TRAININGS
    ]
    rows = [
        show({"form": f, "labelled": n, "shared": m, **apart(measured, f, n, m)})
        for f, n, m in CASES
    ]
    if options.write:
        keep(
            "benchmarks/results/sizing.json",
            machine=f"{platform.machine()}, Python {platform.python_version()}",
            rows=rows,
            additive=additive,
        )


if __name__ == "__main__":
    main()
