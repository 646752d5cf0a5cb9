"""Rounds of conjugate gradients against the serial steps of the paper's Algorithm 1, to the same tolerance.

    python benchmarks/rounds.py [--json]

Both run through the real machines in one process. A wide-area network's latency multiplies the steps in series.
"""

from harness import arguments, show

from coreg_core.protocol.plan import Agreement, Iteration
from coreg_sim.federation.problems import generated
from coreg_sim.federation.simulate import plan_for, simulate

CASES = ((4, 0.1), (16, 0.1), (16, 1.0))


def main() -> None:
    options, rows = arguments(__doc__, json=False), []
    for M, coupling in CASES:
        problem = generated(M, 50, 500, 5, seed=0)
        row = {"sites": M, "coupling": coupling}
        for schedule in ("conjugate-gradients", "block-coordinate-descent"):
            iteration = Iteration(schedule, prediction_tolerance=1e-3, max_rounds=10_000)
            run = simulate(problem, plan_for(problem, Agreement(coupling=(coupling,)), iteration))
            row[schedule] = {"stop": run.outcome.name, "rounds": run.rounds, "in_series": len(run.taken)}
        cg, bcd = row["conjugate-gradients"], row["block-coordinate-descent"]
        row["ratio"] = bcd["in_series"] / cg["in_series"]
        rows.append(row)
        if not options.json:
            print(
                f"M = {M:>2}, coupling {coupling:g}: conjugate gradients {cg['in_series']} rounds ({cg['stop'].lower()}), "
                f"Algorithm 1 {bcd['in_series']} steps in series ({bcd['stop'].lower()}), ratio {row['ratio']:.0f}",
                flush=True,
            )
    if options.json:
        show(rows)


if __name__ == "__main__":
    main()
