"""The dense oracle beside a simulated run of the additive objective, and the errors of the sites' own models."""

from collections.abc import Sequence

import numpy as np

from coreg_core.additive.closed_form import solve_dense
from coreg_core.additive.model.expansion import Expansion, SiteModel
from coreg_core.additive.site import AdditiveSite
from coreg_core.protocol.plan import Additive
from coreg_sim.federation.problems import Problem
from coreg_sim.federation.simulate import Simulated, rmse

MAX_ORACLE_LABELS = 4000  # the oracle is O(N³) in all labels: beyond this number it would dominate the run's time


def models_of(run: Simulated) -> list[SiteModel]:
    """Each site's model, in site order."""
    return [result.additive for result in run.results if result.additive is not None]


def engines_of(problem: Problem, run: Simulated) -> list[AdditiveSite]:
    """Each site's side of the training, rebuilt from its data and its memory: the site can have run in another process."""
    assert isinstance(run.plan.objective, Additive)
    engines = []
    for name, result in zip(run.plan.sites, run.results, strict=True):
        data = problem.sites[name]
        engine = AdditiveSite(data.X, data.y, data.Z, run.plan.objective, name=name, positions=data.positions)
        assert result.kept is not None
        result.kept.restore(engine)
        engines.append(engine)
    return engines


def noise_of(engines: Sequence[AdditiveSite]) -> dict[str, float | None]:
    """The noise of each site with labels, in units of the federation's label variance."""
    return {engine.name: engine.hypers[-1].noise if engine.n_labelled else None for engine in engines}


def off_oracle(run: Simulated, engines: Sequence[AdditiveSite]) -> float | None:
    """The largest difference of score and intercept from the dense oracle, in deviations; None for too many labels."""
    if sum(engine.n_labelled for engine in engines) > MAX_ORACLE_LABELS:
        return None
    assert isinstance(run.plan.objective, Additive)
    point, kept = run.results[0].point, run.results[0].kept
    assert point is not None
    assert kept is not None
    operator = kept.position.operator
    hypers = [engine.hypers[-1].times(operator.noise, operator.prior) for engine in engines]
    dense = solve_dense([engine.view for engine in engines], hypers, run.plan.objective.intercept_prior)
    s = np.sum([engine.view.shared @ w for engine, w in zip(engines, dense.w, strict=True)], axis=0)
    x = point[:, 0]
    return max(float(np.abs(x[: len(s)] - s).max()), abs(float(x[-1]) - dense.intercept))


def held_out_errors(problem: Problem, models: Sequence[Expansion | None]) -> list[float | None]:
    """Each site's error on the held-out rows, in its own units; None for a site without such a model."""
    return [
        None if model is None else rmse(model.predict(X), problem.held_out_y)
        for model, X in zip(models, problem.held_out, strict=True)
    ]
