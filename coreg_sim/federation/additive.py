"""A federation of the additive objective, through the real machines, beside the dense oracle; in one process, or over
Ray.

Where the sites are is a `Carry`, as for the agreement.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import typer

from coordinator.driver import Lap, NoMemory, drive
from coordinator.machine.federation import begin
from coordinator.machine.state import Recorded
from coordinator.observers.rows import Phases, row
from coreg_core.additive.model.expansion import Expansion
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.reference.closed_form import solve_dense
from coreg_core.additive.site import AdditiveSite
from coreg_core.errors import Refused
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.outcomes import Outcome, exit_code, told
from coreg_core.protocol.plan import Answers, Iteration
from coreg_sim.federation.problems import Problem
from coreg_sim.federation.simulate import PATIENT, Carry, Steps, in_process, plan_for, rmse
from coreg_wire.terminal.output import print_json
from site_agent.machine.memory import SiteResult
from site_agent.machine.site_data import PrivateData

# The oracle is O(N³) in all labels: beyond these it would be most of the run.
MOST_LABELS = 4000


@dataclass(frozen=True)
class SimulatedAdditive:
    """What a run came to. ``off_oracle``: largest difference of the score and the intercept, in deviations of the labels."""

    outcome: Outcome
    reason: str
    rounds: int
    phases: dict[str, dict[str, float]]
    numbers_sent: int
    seconds: float
    certified_gap: float
    certified_score_bound: float
    off_oracle: float | None
    noise: dict[str, float | None]  # of the sites with labels, in units of the federation's label variance
    own: tuple[Expansion, ...]
    alone: tuple[Expansion | None, ...]


def simulate(
    problem: Problem,
    terms: Additive,
    reporter: Steps | None = None,
    threads: int = 1,
    carry: Carry = in_process,
    answers: Answers = "clear",
) -> SimulatedAdditive:
    """Run the federation to its end.

    Raises
    ------
    Refused
        a site refused the plan, or all of them together have no label; the message says which.
    Unreachable
        the sites could not be carried on.
    """
    plan = plan_for(problem, terms, Iteration(threads=threads), answers=answers)
    pin_threads(threads)
    steps = reporter or Steps()
    started = time.perf_counter()
    with carry(problem.sites) as carried:
        traffic = carried.transport.traffic
        end = asyncio.run(drive(begin(Recorded(plan), PATIENT), carried.transport, NoMemory(), steps))[plan.run]
        if (failure := carried.failure()) is not None:
            raise failure
        results: list[SiteResult | None] = [carried.result(name) for name in plan.sites]
    seconds = time.perf_counter() - started
    trained = {name: r for name, r in zip(plan.sites, results, strict=True) if r is not None and r.additive is not None}
    if len(trained) < len(results):
        raise Refused(told(end.outcome, end.reason))
    models = [r.additive for r in trained.values() if r.additive is not None]
    phases = Phases()
    for step in steps.taken:
        phases.add(row(step, Lap()))
    last = steps.taken[-1].progress
    assert last is not None
    engines = [_engine(name, problem.sites[name], terms, result) for name, result in trained.items()]
    return SimulatedAdditive(
        outcome=end.outcome,
        reason=end.reason,
        rounds=last.round,
        phases={name: {key: s[key] for key in ("questions", "rounds")} for name, s in phases.spent.items()},
        numbers_sent=(traffic.sent + traffic.received) // 8,
        seconds=seconds,
        certified_gap=float(last.gap.max()),
        certified_score_bound=float(last.prediction_bound.max()),
        off_oracle=_off(terms, engines, next(iter(trained.values()))),
        noise={e.name: e.hypers[-1].noise if e.n_labelled else None for e in engines},
        own=tuple(m.own for m in models),
        alone=tuple(m.alone for m in models),
    )


def _engine(name: str, data: PrivateData, terms: Additive, result: SiteResult) -> AdditiveSite:
    """The site's side of the training, made again of its data and of what it remembered: the site may be in another process."""
    engine = AdditiveSite(data.X, data.y, data.Z, terms, name=name, positions=data.positions)
    assert result.kept is not None
    result.kept.restore(engine)
    return engine


def _off(terms: Additive, engines: list[AdditiveSite], result: SiteResult) -> float | None:
    if sum(engine.n_labelled for engine in engines) > MOST_LABELS:
        return None
    assert result.point is not None
    assert result.kept is not None
    operator = result.kept.position.operator
    hypers = [engine.hypers[-1].times(operator.noise, operator.prior) for engine in engines]
    dense = solve_dense([engine.view for engine in engines], hypers, terms.intercept_prior)
    s = np.sum([engine.view.shared @ w for engine, w in zip(engines, dense.w, strict=True)], axis=0)
    x = result.point.values[:, 0]
    return max(float(np.abs(x[: len(s)] - s).max()), abs(float(x[-1]) - dense.intercept))


def held_out(problem: Problem, models: tuple[Expansion | None, ...]) -> list[float | None]:
    """Each site's error on the held-out rows, in its own units; None where it has no such model."""
    return [
        None if model is None else rmse(model.predict(X), problem.held_out_y)
        for model, X in zip(models, problem.held_out, strict=True)
    ]


def _plain(result: SimulatedAdditive) -> dict[str, Any]:
    return {
        "objective": "additive",
        "stop": result.outcome.name,
        "rounds": result.rounds,
        "phases": result.phases,
        "numbers_sent": result.numbers_sent,
        "seconds": round(result.seconds, 6),
        "certified_gap": result.certified_gap,
        "certified_score_bound": result.certified_score_bound,
        "off_oracle": result.off_oracle,
        "noise": result.noise,
    }


def _mean(errors: list[float | None]) -> str:
    known = [e for e in errors if e is not None]
    return f"{np.mean(known):.4f}" if known else "-"


def _rounds(result: SimulatedAdditive) -> str:
    return ", ".join(f"{phase} {spent['rounds']:.0f}" for phase, spent in result.phases.items() if spent["rounds"])


def _against(result: SimulatedAdditive) -> str:
    if result.off_oracle is None:
        return f"more than {MOST_LABELS} labels: no dense oracle beside it"
    return f"{result.off_oracle:.1e} deviations from the dense oracle at most"


def run(
    problem: Problem, printing: Steps, threads: int, carry: Carry, answers: Answers = "clear", *, as_json: bool
) -> int:
    """`coreg-sim run --objective additive`; the exit code."""
    result = simulate(problem, Additive(), printing, threads, carry, answers)
    errors, alone = held_out(problem, result.own), held_out(problem, result.alone)
    if as_json:
        print_json({"event": "finished", **_plain(result), "rmse_sites": errors, "rmse_sites_alone": alone})
    else:
        typer.echo(told(result.outcome, result.reason))
        typer.echo(
            f"{result.rounds} rounds ({_rounds(result)}), {result.numbers_sent} numbers sent, {result.seconds:.2f} s"
        )
        typer.echo(f"J - J* <= {result.certified_gap:.2e}; {_against(result)}")
        noise = ", ".join(f"{site} {value:.3f}" for site, value in result.noise.items() if value is not None)
        typer.echo(f"label noise of each site, of the federation's label variance: {noise}")
        typer.echo(f"held-out rmse of the sites' own models, mean: {_mean(alone)} alone, {_mean(errors)} together")
    return exit_code(result.outcome)


def compare(problem: Problem, threads: int, carry: Carry, *, as_json: bool) -> int:
    """`coreg-sim compare --objective additive`; the exit code."""
    results = {
        tolerance: simulate(problem, Additive(final_tolerance=tolerance), threads=threads, carry=carry)
        for tolerance in (Additive().final_tolerance, 1e-10)
    }
    if as_json:
        rows = [{"final_tolerance": tolerance, **_plain(result)} for tolerance, result in results.items()]
        print_json({"additive": rows})
    else:
        for tolerance, result in results.items():
            typer.echo(
                f"final_tolerance {tolerance:g}: {result.outcome.name.lower()}, {result.rounds} rounds ({_rounds(result)}), "
                f"{result.numbers_sent:,} numbers sent, {result.seconds:.2f} s; {_against(result)}"
            )
    return max(exit_code(result.outcome) for result in results.values())
