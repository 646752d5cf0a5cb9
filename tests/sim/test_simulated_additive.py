"""Additive trainings in simulated federations: the models are those of memory, and coreg-sim prints what they bring."""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from coreg_core.additive.exchange import _two_digits
from coreg_core.additive.features import SiteRows
from coreg_core.errors import UsageError
from coreg_core.estimators.additive_training import train
from coreg_core.objectives.additive import Additive
from coreg_core.secure import cross_products
from coreg_sim.cli.app import app
from coreg_sim.federation.problems import generated
from coreg_sim.federation.simulate import plan_for, simulate

SMALL = ["--sites", "3", "--labelled", "50", "--unlabelled", "150", "--views", "2"]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """A short secret gives the same sums."""
    monkeypatch.setattr(cross_products, "SECRET_ROWS", 64)
    monkeypatch.setattr(cross_products, "RANDOM_ROWS", 320)


def as_told(y):
    """Labels whose level and deviation have no more digits than a federation tells: what is left is its fixed point."""
    deviation = y.std(ddof=1)
    level, told = _two_digits(float(y.mean()), float(deviation))
    return level + (y - y.mean()) * (told / deviation)


@pytest.mark.parametrize("common", [True, False], ids=["common rows", "private rows"])
def test_without_noise_a_federation_ends_with_the_models_of_memory(common):
    problem, terms = generated(3, 50, 170, 4, seed=1, common=common), Additive("linear", noise=0.0, label_noise=0.0)
    problem = replace(problem, sites={name: replace(data, y=as_told(data.y)) for name, data in problem.sites.items()})
    run = simulate(problem, plan_for(problem, terms))
    sites = []
    for data in problem.sites.values():
        own = data.positions if common else len(data.Z) + np.arange(len(data.y))
        sites.append(SiteRows(data.Z if common else np.concatenate([data.Z, data.X]), own, data.y))
    memory = train(sites, problem.n_unlabelled, rules=terms)
    rows = [site.prepared(X) for site, X in zip(memory.sites, problem.held_out, strict=True)]
    models = [result.additive for result in run.results]
    present = range(len(models))
    parts = [model.part(model.phi(X), present) for model, X in zip(models, problem.held_out, strict=True)]
    total = np.sum(parts, axis=0)
    for v, (model, X) in enumerate(zip(models, problem.held_out, strict=True)):
        np.testing.assert_allclose(model.predict(X), memory.joined(v, rows[v]), atol=5e-4)
        np.testing.assert_allclose(model.score(total, X), memory.checked_score(rows, v), atol=5e-4)


def sim(*arguments):
    return CliRunner().invoke(app, [*arguments])


def test_a_run_prints_each_site_s_errors_and_forecasts():
    done = sim("run", *SMALL)  # the default objective
    assert done.exit_code == 0, done.output
    heading, *rows = done.output.splitlines()[-4:]
    assert heading.split() == [
        "labels",
        "local",
        *("joined", "change", "forecast"),
        *("score", "change", "forecast"),
        "recommended",
    ]
    assert [row.split()[:2] for row in rows] == [[f"site-{v}", "50"] for v in range(3)]
    last = json.loads(sim("run", *SMALL, "--noise", "0", "--label-noise", "0", "--json").output.splitlines()[-1])
    assert (last["event"], last["schedule"], last["stop"], len(last["sites"])) == (
        "finished",
        "additive",
        "CONVERGED",
        3,
    )
    assert last["bytes_sent"] > 0
    for site in last["sites"].values():
        assert site["rmse"]["score"] < site["rmse"]["joined"] < site["rmse"]["local"]
        assert set(site["forecast"]) == {"joined", "score"}
    private = json.loads(sim("run", *SMALL, "--private-rows", "--json").output.splitlines()[-1])
    assert all(set(site["forecast"]) == {"joined"} for site in private["sites"].values())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--coupling", "0.1"], "--coupling needs --objective agreement"),
        (["--aggregation", "plaintext"], "--aggregation needs --objective agreement"),
        (["--objective", "agreement", "--label-noise", "0"], "--label-noise needs --objective additive"),
        (["--sites", "39"], "39 sites: an additive training has at most 38"),
    ],
)
def test_options_that_do_not_go_together_are_usage_errors(options, says):
    error = sim("run", *options).exception
    assert isinstance(error, UsageError)
    assert says in str(error)


def test_too_few_labels_are_refused_with_the_rule():
    assert "120 labelled common individuals, where least_rows is 150" in str(
        sim("run", *SMALL[:2], "--labelled", "40").exception
    )
