"""A small federation of the additive objective: thirty shared instances, sites a to d, parts that add up."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from machine.tiny import Pump, site_with

from coreg_core.additive.closed_form import solve_dense
from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.model.terms import Additive
from coreg_core.protocol.plan import Membership, Plan, Privacy
from site_agent.machine.additive import AdditiveJob
from site_agent.machine.site import Site
from site_agent.machine.site_data import PrivateData, row_keys

UNLABELLED = 30
NAMES = ("a", "b", "c")
EVERYTHING = ResidualPolicy(grouped_at_least=3, open_residuals=True)
SMALL: dict[str, Any] = {"tuning_steps": 2, "probes": 2, "landmarks": 12, "final_tolerance": 1e-10}


def additive_plan(names: Iterable[str] = NAMES, *, run: str = "run-1", **changes: Any) -> Plan:
    """``changes`` are of the membership, of the privacy or of the terms."""
    membership, privacy = Membership(tuple(names), 2), Privacy(aggregation="plaintext")
    members = {key: changes.pop(key) for key in ("min_sites", "on_dropout", "max_rejoins") if key in changes}
    private = {key: changes.pop(key) for key in ("aggregation", "membership_changes") if key in changes}
    terms = Additive(**(SMALL | changes))
    return Plan(run, "tiny", replace(membership, **members), terms, privacy=replace(privacy, **private))


def private_data(name: str, labels: int = 9, *, common: bool = False, noise: float = 0.1) -> PrivateData:
    """Two columns of eight, whose functions add up to the label."""
    rng = np.random.default_rng(7)
    v = "abcd".index(name)
    A = rng.normal(size=(UNLABELLED + 40, 8))
    y = 5.0 + 2.0 * sum(np.sin(A[:, 2 * u]) + 0.3 * A[:, 2 * u + 1] ** 2 for u in range(4))
    y = y + noise * rng.normal(size=len(y))
    own = np.arange(3 * v, 3 * v + labels) if common else UNLABELLED + 10 * v + np.arange(labels)
    columns = slice(2 * v, 2 * v + 2)
    X, Z = np.ascontiguousarray(A[own, columns]), np.ascontiguousarray(A[:UNLABELLED, columns])
    positions = own.astype(np.int64) if common else None
    labels = np.ascontiguousarray(y[own])
    keys = row_keys([f"p{i}" for i in own], labels, name.encode())
    return PrivateData(X, labels, Z, "ids", name.encode(), positions, keys)


def additive_sites(
    plan: Plan, labels: Mapping[str, int] | None = None, rules: Mapping[str, Any] | None = None, **options: Any
) -> dict[str, Site]:
    given, told = labels or {}, {"residuals": EVERYTHING, **(rules or {})}
    return {name: site_with(name, private_data(name, given.get(name, 9), **options), **told) for name in plan.sites}


def job(site: Site) -> AdditiveJob:
    assert isinstance(site._job, AdditiveJob)
    return site._job


def undisturbed(plan: Plan, labels: Mapping[str, int] | None = None, **options: Any) -> Pump:
    return Pump(plan, additive_sites(plan, labels, **options)).join().run()


def off_the_oracle(pump: Pump, intercept_prior: float = 1.0) -> float:
    """The largest difference between what messages alone came to and the dense solution, in deviations of the labels."""
    sites = [pump.sites[name] for name in pump.machine.plan.sites]
    engines = [job(site).engine for site in sites]
    dense = solve_dense(
        [e.view for e in engines],
        [e.hypers[-1].times(*operator(site)) for site, e in zip(sites, engines, strict=True)],
        intercept_prior,
    )
    s = np.sum([engine.view.shared @ w for engine, w in zip(engines, dense.w, strict=True)], axis=0)
    assert sites[0].result is not None
    assert sites[0].result.point is not None
    x, m = sites[0].result.point[:, 0], len(s)
    return max(float(np.abs(x[:m] - s).max(initial=0.0)), abs(float(x[-1]) - dense.intercept))


def operator(site: Site) -> tuple[float, float]:
    """Noise and prior that the training has come to."""
    last = job(site)._position
    return last.noise, last.prior
