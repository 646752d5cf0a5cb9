"""The additive objective on real sets: the gain of each site's own model over its model alone, joint scores, and rounds.

    python benchmarks/additive.py DATA TRIALS --sets held --regimes n10,n20,zero,junk50 --reps 3 --seed 31 --out additive.jsonl

DATA is a folder of sets with manifest.json. TRIALS is the folder of the trials. Only its `data.py` is used, which partitions
rows and columns, so that both use the same partitions. --final-tolerance 1e-13 compares messages with the dense oracle.
Cells are those of check/results7.txt: means over sets of the relative change of a site's root mean squared error, and the share
of sites made worse by more than 2 % and 10 %.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from harness import arguments, least

from benchmarks.additive_reference.in_memory import run_in_memory
from coreg_core.additive.closed_form import solve_dense
from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_types import Operator
from coreg_core.additive.site import AdditiveSite
from coreg_core.additive.training import Training
from coreg_core.additive.training_state import Phase

REGIMES = {
    "n10": {"ns": [10] * 3}, "n20": {"ns": [20] * 3}, "n50": {"ns": [50] * 3}, "n200": {"ns": [200] * 3},
    "M5": {"ns": [50] * 5}, "M8": {"ns": [50] * 8}, "core20": {"ns": [20] * 3, "overlap": "core"},
    "rich": {"ns": [200, 10, 10]}, "zero": {"ns": [100, 0, 0]}, "junk50": {"ns": [50] * 3, "twist": "junk"},
}  # fmt: skip


def cell(groups, y, regime, seed, terms, deal):
    ns = regime["ns"]
    rng = np.random.default_rng(seed)
    dealt = deal(groups, y, len(ns), ns, 1000, rng, regime.get("overlap", "none"), False, twist=regime.get("twist"))
    if dealt is None:
        return None
    tables, y_test, _, _, parts_of = dealt
    sites = []
    policy = ResidualPolicy(3, open_residuals=True)
    lead = len(tables[0][2])
    positions, shared = [], [[table[2]] for table in tables]
    if terms.rows == "common":  # every site's labelled instances follow the shared ones
        labelled = np.concatenate([table[4] for table in tables])
        columns = [np.hstack([groups[j] for j in part])[labelled] for part in parts_of]
        ends = np.cumsum([lead, *ns])
        positions = [np.arange(ends[v], ends[v + 1]) for v in range(len(ns))]
        shared = [[table[2], own] for table, own in zip(tables, columns, strict=True)]
    for v, (X, labels, _, _, _) in enumerate(tables):
        Z = np.concatenate(shared[v])
        where = positions[v] if positions else None
        sites.append(AdditiveSite(X, labels, Z, terms, name=f"site{v}", positions=where, policy=policy))
    training, counted = Training(terms), defaultdict(int)

    def look(state):
        counted[Phase(state.phase).name] += 1

    start = training.start(len(np.concatenate(shared[0])))
    seconds, state = least(lambda: run_in_memory(training, start, sites, look), 1)
    mean = float(np.concatenate([t[1] for t in tables]).mean())
    mse = lambda prediction: float(np.mean((y_test - prediction) ** 2))  # noqa: E731
    alone = [
        mse(s.model.alone.predict(t[3])) if s.model.alone else mse(mean) for s, t in zip(sites, tables, strict=True)
    ]
    parts = sum(s.model.part.predict(t[3]) for s, t in zip(sites, tables, strict=True))
    views = [site.view for site in sites]
    noise, prior = state.operator.tolist()
    hypers = [site.hypers[-1].times(noise, prior) for site in sites]
    dense = solve_dense(views, hypers, terms.intercept_prior)
    s = sum(view.shared @ w for view, w in zip(views, dense.w, strict=True))
    m = len(s)
    fits = [site.own_fit.error if site.own_fit else np.inf for site in sites]
    return {
        "n": ns,
        "alone": alone,
        "own": [mse(site.model.own.predict(t[3])) for site, t in zip(sites, tables, strict=True)],
        "joined": [mse(site.model.joined.predict(t[3])) for site, t in zip(sites, tables, strict=True)],
        "joint": mse(sites[0].model.intercept + parts),
        "best": alone[int(np.argmin(fits))],
        "rounds": state.rounds,
        "exchanges": state.exchanges,
        "solve_rounds": counted["SOLVE"] + counted["FINAL"],
        "certificate": state.certificate.tolist(),
        "from_oracle": float(np.sqrt(np.mean((state.x[:m, 0] + state.x[-1, 0] - s - dense.intercept) ** 2))),
        "multiplier": [h.noise / site.hypers[0].noise for h, site in zip(hypers, sites, strict=True)],
        "r2": [site.smoother.r2 for site in sites],
        "seconds": seconds,
        "operator": Operator(noise=noise, prior=prior).__dict__,
    }


def table(rows):
    cells = defaultdict(lambda: defaultdict(list))
    for r in rows:
        for v in range(len(r["n"])):
            if r["regime"] == "junk50" and v == 2:
                continue
            tail = (":s" if v == 0 else ":w") if r["regime"] in ("rich", "zero") else ""
            for kind in ("joined", "own"):
                change = float(np.clip(np.sqrt(r[kind][v] / r["alone"][v]) - 1, -0.9, 2))
                cells[kind][r["regime"] + tail].append((r["set"], change))
                if r["n"][v] >= 3:
                    cells[kind]["ALL"].append((r["set"], change))
        cells["joint : best"][r["regime"]].append((r["set"], float(np.sqrt(r["joint"] / r["best"]) - 1)))
    print(f"{len(rows)} cells; mean % harmed>2%/>10%")
    for kind, by in cells.items():
        for regime, seen in by.items():
            sets = defaultdict(list)
            for name, change in seen:
                sets[name].append(change)
            mean = 100 * np.mean([np.mean(changes) for changes in sets.values()])
            harmed = [100 * np.mean([change > limit for _, change in seen]) for limit in (0.02, 0.1)]
            print(f"{kind:14s}{regime:10s}{mean:7.1f}{harmed[0]:6.0f}/{harmed[1]:3.0f}")
    for what in ("rounds", "solve_rounds", "exchanges", "seconds", "from_oracle"):
        values = np.array([r[what] for r in rows])
        print(f"{what}: median {np.median(values):.3g}, largest {values.max():.3g}")


if __name__ == "__main__":
    given = arguments(
        __doc__, data=Path, trials=Path, sets="held", regimes="n10,n20,zero,junk50", reps=3, seed=31, rows="private",
        residuals="smoothed", final_tolerance=1e-5, out="",
    )  # fmt: skip
    sys.path.insert(0, str(given.trials))
    import data as deals

    names = {"tune": deals.TUNE, "held": deals.HELD}.get(given.sets, given.sets.split(","))
    results = []
    for name in names:
        groups, y, _ = deals.load(name, given.data)
        for rep in range(given.reps):
            for key in given.regimes.split(","):
                seed = [given.seed + rep, sum(map(ord, name)), sum(map(ord, key))]
                about = {"rows": given.rows, "residuals": given.residuals, "final_tolerance": given.final_tolerance}
                terms = Additive(seed=given.seed + rep, **about)
                found = cell(groups, y, REGIMES[key], seed, terms, deals.deal)
                if found is not None:
                    results.append(found | {"set": name, "regime": key, "rep": given.seed + rep})
                    rounds = found["rounds"], found["solve_rounds"]
                    print(name, key, rep, *rounds, f"{found['from_oracle']:.1e}", flush=True, file=sys.stderr)
    if given.out:
        Path(given.out).write_text("".join(json.dumps(r) + "\n" for r in results))
    table(results)
