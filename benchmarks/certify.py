"""Is a stated bound always above the true error? Random hard problems, five solvers, against ball arithmetic.

    python benchmarks/certify.py --seeds 1000 --first 0      the property test (make certify); --write keeps its result
    python benchmarks/certify.py --sample                    the sample for CI: tests/core/certify_sample.json

A run is *false* when the error of some view's predictions exceeds `prediction_bound_`, when Q of the delivered functions
exceeds Q* by more than `gap_`, or when it states CONVERGED above its own tolerances. Refusals (SingularSystem, a rule without
a value) are counted separately. Exit code 1 when any run was false.
"""

import json
import sys
import time
import warnings
from collections import Counter
from multiprocessing import Pool
from typing import Any

from harness import ROOT, arguments, keep  # before numpy

# isort: split
import numpy as np
from ball_reference import Case, Optimum, kernel_matrix, optimum
from flint import arb, arb_mat
from hard_problems import Hard, hard_problem

from coreg_core.agreement.schedules.schedule import Stop
from coreg_core.errors import CoregError
from coreg_core.estimators import CoRLSR
from coreg_core.estimators._parameters import SOLVERS
from coreg_core.kernels.functions import make_kernel

SAMPLE = ROOT / "tests" / "core" / "certify_sample.json"


def cases_of(model: CoRLSR, problem: Hard) -> list[Case]:
    """The views with the bandwidths and ridges that the model used."""
    p = problem.parameters
    return [
        Case(
            make_kernel(p["kernel"], bandwidth=float(b), degree=p.get("degree", 3), offset=p.get("offset", 1.0)),
            X,
            y,
            Z,
            float(r),
        )
        for b, r, X, y, Z in zip(model.bandwidth_, model.ridge_, problem.Xs, problem.ys, problem.Zs, strict=True)
    ]


def true_gap(model: CoRLSR, cases: list[Case], best: Optimum) -> float:
    """Q of the delivered functions − Q*, an upper end."""
    total, lam, M = arb(0), arb(model.coupling), len(cases)
    on_Z = []
    for f, c, (K_XX, K_XZ, K_ZZ) in zip(model.functions_, cases, best.blocks, strict=True):
        n, m = len(c.X), len(c.Z)
        lows = [0.0] * len(f.coef) if f.coef_low is None else f.coef_low.tolist()
        coef = [arb(a) + arb(b) for a, b in zip(f.coef.tolist(), lows, strict=True)]
        known = {row.tobytes(): i for i, row in enumerate(np.concatenate([c.X, c.Z]))}
        index = [known.get(row.tobytes()) for row in f.points]
        if all(i is not None for i in index):
            full = [arb(0)] * (n + m)
            for i, a in zip(index, coef, strict=True):
                full[i] += a  # type: ignore[index]
            c_X, c_Z = arb_mat(n, 1, full[:n]), arb_mat(m, 1, full[n:])
            f_X = K_XX * c_X + K_XZ * c_Z if m else K_XX * c_X
            f_Z = K_XZ.transpose() * c_X + K_ZZ * c_Z if m else arb_mat(0, 1)
            norm = (c_X.transpose() * f_X)[0, 0] + ((c_Z.transpose() * f_Z)[0, 0] if m else 0)
        else:
            column = arb_mat(len(coef), 1, coef)
            f_X = kernel_matrix(f.kernel, c.X, f.points) * column
            f_Z = kernel_matrix(f.kernel, c.Z, f.points) * column if m else arb_mat(0, 1)
            norm = (column.transpose() * (kernel_matrix(f.kernel, f.points, f.points) * column))[0, 0]
        residual = [arb(v) - f_X[i, 0] for i, v in enumerate(c.y.tolist())]
        total += sum((r * r for r in residual), arb(0)) + arb(c.ridge) * norm
        on_Z.append([f_Z[j, 0] for j in range(m)])
    for j in range(len(cases[0].Z)):
        mean = sum((f[j] for f in on_Z), arb(0)) / M
        total += 2 * M * lam * sum(((f[j] - mean) * (f[j] - mean) for f in on_Z), arb(0))
    return float((total - best.objective).upper())


def judge(problem: Hard) -> list[dict[str, Any]]:
    """One row a solver."""
    warnings.simplefilter("ignore")
    rows: list[dict[str, Any]] = []
    best: Optimum | None = None
    for solver in SOLVERS:
        row: dict[str, Any] = {"solver": solver}
        rows.append(row)
        began = time.perf_counter()
        try:
            with np.errstate(all="ignore"):
                model = CoRLSR(preset="paper", **problem.parameters, solver=solver).fit(
                    problem.Xs, problem.ys, problem.Zs
                )
        except CoregError as error:
            row |= {"outcome": "refused", "why": str(error)[:160]}
            continue
        row["seconds"] = time.perf_counter() - began
        if best is None:
            cases = cases_of(model, problem)
            best = optimum(cases, problem.parameters["coupling"], problem.parameters["form"])
        error = max(best.errors(model.predictions_unlabelled_), default=0.0)
        size = max(best.sizes(), default=0.0)
        gap = true_gap(model, cases, best)
        Q0 = float(sum(y @ y for y in problem.ys))
        tol = problem.parameters.get("prediction_tol")
        tol = 1e-9 * max(float(np.abs(y).max()) for y in problem.ys) if tol is None else tol
        converged = model.stop_ is Stop.CONVERGED
        tiny = 1e-300
        row |= {
            "outcome": model.stop_.name.lower(),
            "error": error,
            "size": size,
            "bound": float(model.prediction_bound_),
            "gap": gap,
            "stated_gap": float(model.gap_),
            "rank": np.asarray(model.rank_).tolist(),
            "least_ridge": float(np.min(model.ridge_)),
            "false_bound": bool(not error <= model.prediction_bound_ + tiny),
            "false_gap": bool(gap is not None and not gap <= model.gap_ + tiny),
            "false_stop": bool(converged and (error > tol or (gap or 0.0) > problem.parameters.get("tol", 1e-10) * Q0)),
            "met": bool(error <= tol and (gap or 0.0) <= problem.parameters.get("tol", 1e-10) * Q0),
        }
    return rows


def judged(seed: int) -> dict[str, Any]:
    """One seed, for a pool."""
    problem = hard_problem(seed)
    try:
        rows = judge(problem)
    except Exception as error:  # noqa: BLE001  # a crash is a finding, and the run goes on
        rows = [{"solver": "?", "outcome": "crash", "why": f"{type(error).__name__}: {error}"[:300]}]
    keys = ("form", "kernel", "coupling", "tol")
    return {
        "seed": seed,
        **{k: problem.parameters[k] for k in keys},
        "shape": [len(problem.Xs), len(problem.Zs[0]), [list(X.shape) for X in problem.Xs]],
        "traits": list(problem.traits),
        "rows": rows,
    }


def brief(result: dict[str, Any], row: dict[str, Any]) -> str:
    """One line for a finding."""
    numbers = " ".join(f"{k}={row[k]:.1e}" for k in ("error", "bound", "gap", "stated_gap") if row.get(k) is not None)
    flags = " ".join(k for k in ("false_bound", "false_gap", "false_stop") if row.get(k))
    where = f"seed {result['seed']} {result['form'][:5]} {result['kernel']} {row['solver']}"
    return f"{where}: {row['outcome']} {flags} {numbers} {','.join(result['traits'])} {row.get('why', '')}"


def table(results: list[dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """The printed lines, and the saved results."""
    summary: dict[str, Any] = {}
    for form in ("exact", "semi-parametric", ""):
        for solver in (*SOLVERS, "?") if form else ("",):
            rows = [
                row
                for r in results
                if r["form"] == form or not form
                for row in r["rows"]
                if row["solver"] == solver or not form
            ]
            if not rows:
                continue
            count = Counter(row["outcome"] for row in rows)
            done = [row for row in rows if "error" in row]
            ratios = [row["error"] / row["bound"] for row in done if row["bound"] > 0]
            gaps = [
                row["gap"] / row["stated_gap"] for row in done if row.get("gap") is not None and row["stated_gap"] > 0
            ]
            summary[f"{form}, {solver}" if form else "all"] = {
                "runs": len(rows),
                **dict(count),
                "false bounds": sum(row["false_bound"] for row in done),
                "false gaps": sum(row["false_gap"] for row in done),
                "false stops": sum(row["false_stop"] for row in done),
                "met, not certified": sum(row["met"] and row["outcome"] != "converged" for row in done),
                "the same at ridges from 1e-5": sum(
                    row["met"] and row["outcome"] != "converged" for row in done if row["least_ridge"] >= 1e-5
                ),
                "runs at ridges from 1e-5": sum(row["least_ridge"] >= 1e-5 for row in done),
                "largest error / bound": max(ratios, default=0.0),
                "largest gap / bound": max(gaps, default=0.0),
                "median error / bound": float(np.median(ratios)) if ratios else 0.0,
            }
    lines = []
    for name, s in summary.items():
        lines.append(
            f"{name:46s} " + "  ".join(f"{k} {v:.2g}" if isinstance(v, float) else f"{k} {v}" for k, v in s.items())
        )
    return "\n".join(lines), summary


def sample(count: int) -> None:
    """Small problems with the values of the rules and their optimum, for tests/core/test_certify_sample.py."""
    kept: dict[str, Any] = {}
    seed = 100_000
    while len(kept) < count:
        seed += 1
        problem = hard_problem(seed, largest_m=24)
        if sum(X.size for X in problem.Xs) > 800 or len(problem.Zs[0]) == 0:
            continue
        try:
            model = CoRLSR(preset="paper", **problem.parameters, solver="direct").fit(
                problem.Xs, problem.ys, problem.Zs
            )
        except CoregError:
            continue
        best = optimum(cases_of(model, problem), problem.parameters["coupling"], problem.parameters["form"])
        kept[str(seed)] = {
            "digest": problem.digest(),
            "bandwidth": model.bandwidth_.tolist(),
            "ridge": model.ridge_.tolist(),
            "predictions": [[float(p[j, 0].mid()) for j in range(p.nrows())] for p in best.predictions],
            "objective": float(best.objective.mid()),
        }
    SAMPLE.write_text(json.dumps(kept) + "\n")


def main() -> int:
    options = arguments(__doc__, seeds=1000, first=0, processes=2, write=False, sample=False)
    if options.sample:
        sample(40)
        return 0
    began, results = time.perf_counter(), []
    with Pool(options.processes) as pool:
        for r in pool.imap_unordered(judged, range(options.first, options.first + options.seeds), chunksize=2):
            results.append(r)
            for row in r["rows"]:
                if row["outcome"] == "crash" or row.get("false_bound") or row.get("false_gap") or row.get("false_stop"):
                    print(brief(r, row), flush=True)
    results.sort(key=lambda r: r["seed"])
    text, summary = table(results)
    print(text)
    seconds = round(time.perf_counter() - began)
    wrong = sum(
        s["false bounds"] + s["false gaps"] + s["false stops"] + s.get("crash", 0)
        for name, s in summary.items()
        if name != "all"
    )
    print(f"{options.seeds} problems from seed {options.first}, {seconds} s: {wrong} false statements")
    if options.write:
        seeds = [options.first, options.first + options.seeds]
        keep(
            "benchmarks/results/certify.json",
            seeds=seeds,
            seconds=seconds,
            false=wrong,
            summary=summary,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
