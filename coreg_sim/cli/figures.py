"""The figures of a simulated run, as JSON values and as text."""

from dataclasses import asdict
from typing import Any

import numpy as np

from coreg_core.objectives.additive import Additive
from coreg_sim.federation.problems import Problem
from coreg_sim.federation.simulate import Simulated, held_out_errors, rmse
from coreg_wire.terminal.output import human_bytes

MODELS = ("joined", "score")  # that a verdict compares with the local model


def figures(run: Simulated) -> dict[str, Any]:
    """The figures of one run, as JSON values."""
    additive = isinstance(run.plan.objective, Additive)
    found = {
        "schedule": "additive" if additive else run.plan.iteration.name,
        "stop": run.outcome.name,
        "steps_in_series": len(run.taken),
        "numbers_sent": run.numbers_sent,
        "bytes_sent": run.bytes_sent,
        "seconds": round(run.seconds, 6),
    }
    if additive:
        return found
    return found | {
        "rounds": run.rounds,
        "certified_gap": run.certified_gap,
        "certified_prediction_bound": run.certified_prediction_bound,
        "objective": run.objective,
    }


def errors(problem: Problem, run: Simulated) -> dict[str, Any]:
    """The sites' errors on held-out rows; of an agreement also those of the mean prediction."""
    if isinstance(run.plan.objective, Additive):
        return {"sites": _sites(problem, run)}
    together, of_mean = held_out_errors(problem, run.solutions)
    alone, alone_of_mean = held_out_errors(problem, run.alone)
    return {"rmse_sites": together, "rmse_sites_alone": alone, "rmse_mean": of_mean, "rmse_mean_alone": alone_of_mean}


def _sites(problem: Problem, run: Simulated) -> dict[str, dict[str, Any]]:
    """Of each site: its labels, the errors of its models on held-out rows (None: no such model), and its verdict."""
    models, found = [result.additive for result in run.results if result.additive is not None], {}
    mine = list(zip(models, problem.held_out, strict=True))
    total = np.sum([model.part(model.phi(X), range(len(models))) for model, X in mine], axis=0)
    for name, result, (model, X) in zip(run.plan.sites, run.results, mine, strict=True):
        judged = result.judged
        assert judged is not None
        predicted = (model.alone(X), model.predict(X), model.score(total, X))
        found[name] = {
            "labels": len(judged.labels),
            "rmse": {
                key: None if each is None else rmse(each, problem.held_out_y)
                for key, each in zip(("local", *MODELS), predicted, strict=True)
            },
            "forecast": {key: asdict(gain) for key, gain in judged.verdict.gains.items()},
            "recommended": judged.verdict.recommended,
        }
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """The figures and errors of a run, as text."""
    sent = (
        f"{found['steps_in_series']} steps in series, {found['numbers_sent']} numbers sent "
        f"({human_bytes(found['bytes_sent'])}), {found['seconds']:.2f} s"
    )
    if "sites" in found:
        return [sent, *_table(found["sites"])]
    joined, alone = np.mean(found["rmse_sites"]), np.mean(found["rmse_sites_alone"])
    harmed = (
        "This coupling makes the sites worse. For columns that are divided among the sites, use the additive objective. "
        "`coreg-sim benefit` compares the methods."
    )
    return [
        f"{found['rounds']} rounds, {sent}; Q - Q* <= {found['certified_gap']:.2e}",
        f"root mean square error on held-out rows, mean over sites: {alone:.4f} alone, {joined:.4f} joined",
        f"root mean square error of the sites' mean prediction: {found['rmse_mean_alone']:.4f} alone, "
        f"{found['rmse_mean']:.4f} joined",
        *([harmed] if joined > alone else []),
    ]


def _table(sites: dict[str, dict[str, Any]]) -> list[str]:
    """A row for each site: errors, their change against the local model, and the forecast of the change."""
    width = max(map(len, sites))
    out = [
        "root mean square error on held-out rows, its change against the local model, and the site's own forecast of it",
        f"{'':<{width}} {'labels':>6} {'local':>8}"
        + "".join(f" {name:>8} {'change':>8} {'forecast':>15}" for name in MODELS)
        + "  recommended",
    ]
    for name, site in sites.items():
        local = site["rmse"]["local"]
        cells = [f"{name:<{width}} {site['labels']:>6} {'-' if local is None else f'{local:.4f}':>8}"]
        for key in MODELS:
            error, told = site["rmse"][key], site["forecast"].get(key)
            change = "-" if local is None else f"{100 * (error / local - 1):+.1f} %"
            forecast = "-" if told is None else f"{100 * told['change']:+.1f} ± {100 * told['standard_error']:.1f} %"
            cells.append(f"{error:>8.4f} {change:>8} {forecast:>15}")
        out.append(f"{' '.join(cells)}  {site['recommended']}")
    return out
