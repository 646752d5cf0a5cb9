"""The figures of a simulated run, as JSON values and as text."""

from typing import Any

import numpy as np

from coordinator.driver import Timing
from coordinator.observers.lines import Phases, row
from coreg_core.protocol.plan import Additive
from coreg_sim.federation import additive
from coreg_sim.federation.problems import Problem
from coreg_sim.federation.simulate import Simulated, held_out_errors
from coreg_wire.terminal.output import human_bytes


def figures(problem: Problem, run: Simulated) -> dict[str, Any]:
    """The figures of one run, as JSON values."""
    if isinstance(run.plan.objective, Additive):
        phases, engines = Phases(), additive.engines_of(problem, run)
        for step in run.taken:
            phases.add(row(step, Timing()))
        return {
            "objective": "additive",
            "stop": run.outcome.name,
            "rounds": run.rounds,
            "phases": {name: {key: spent[key] for key in ("steps", "rounds")} for name, spent in phases.spent.items()},
            "numbers_sent": run.numbers_sent,
            "seconds": round(run.seconds, 6),
            "certified_gap": run.certified_gap,
            "certified_score_bound": run.certified_prediction_bound,
            "off_oracle": additive.off_oracle(run, engines),
            "noise": additive.noise_of(engines),
        }
    return {
        "schedule": run.plan.iteration.name,
        "stop": run.outcome.name,
        "rounds": run.rounds,
        "steps_in_series": len(run.taken),
        "numbers_sent": run.numbers_sent,
        "bytes_sent": run.bytes_sent,
        "seconds": round(run.seconds, 6),
        "certified_gap": run.certified_gap,
        "certified_prediction_bound": run.certified_prediction_bound,
        "objective": run.objective,
    }


def errors(problem: Problem, run: Simulated) -> dict[str, Any]:
    """The sites' errors on held-out rows, joined and alone; for the agreement also the errors of the mean prediction."""
    if isinstance(run.plan.objective, Additive):
        models = additive.models_of(run)
        return {
            "rmse_sites": additive.held_out_errors(problem, [model.own for model in models]),
            "rmse_sites_alone": additive.held_out_errors(problem, [model.alone for model in models]),
        }
    together, of_mean = held_out_errors(problem, run.solutions)
    alone, alone_of_mean = held_out_errors(problem, run.alone)
    return {
        "rmse_sites": together,
        "rmse_sites_alone": alone,
        "rmse_mean": of_mean,
        "rmse_mean_alone": alone_of_mean,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The figures and errors of a run, as text."""
    mean, alone = _mean(found["rmse_sites"]), _mean(found["rmse_sites_alone"])
    if found["objective"] == "additive":
        noise = ", ".join(f"{site} {value:.3f}" for site, value in found["noise"].items() if value is not None)
        return [
            f"{found['rounds']} rounds ({rounds(found)}), {found['numbers_sent']} numbers sent, {found['seconds']:.2f} s",
            f"J - J* <= {found['certified_gap']:.2e}; {against_oracle(found)}",
            f"label noise of each site, in units of the federation's label variance: {noise}",
            f"root mean square error on held-out rows, mean over sites: {alone} alone, {mean} joined",
        ]
    joined, before = (
        np.mean([x for x in found[key] if x is not None] or [0.0]) for key in ("rmse_sites", "rmse_sites_alone")
    )
    harmed = (
        "This coupling makes the sites worse. For columns that are divided among the sites, use the additive objective. "
        "`coreg-sim benefit` compares the methods."
    )
    return [
        f"{found['rounds']} rounds, {found['steps_in_series']} steps in series, {found['numbers_sent']} numbers sent "
        f"({human_bytes(found['bytes_sent'])}), {found['seconds']:.2f} s; Q - Q* <= {found['certified_gap']:.2e}",
        f"root mean square error on held-out rows, mean over sites: {alone} alone, {mean} joined",
        f"root mean square error of the sites' mean prediction: {found['rmse_mean_alone']:.4f} alone, "
        f"{found['rmse_mean']:.4f} joined",
        *([harmed] if joined > before else []),
    ]


def rounds(found: dict[str, Any]) -> str:
    """The rounds of each phase of an additive run."""
    return ", ".join(f"{phase} {spent['rounds']:.0f}" for phase, spent in found["phases"].items() if spent["rounds"])


def against_oracle(found: dict[str, Any]) -> str:
    if found["off_oracle"] is None:
        return f"no dense oracle, because there are more than {additive.MAX_ORACLE_LABELS} labels"
    return f"at most {found['off_oracle']:.1e} label deviations from the dense oracle"


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.4f}" if known else "-"
