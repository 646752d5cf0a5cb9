"""The demonstration's federations: their configuration files, and the commands that an operator would type.

Three sites train with the additive objective, score the held-out patients together, and then run coRLSR, whose result is
compared with the centralised closed form.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.additive_reference.dense_training import train_dense
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.site import AdditiveSite
from coreg_core.estimators import CoRLSR
from coreg_core.evaluation.recommendation import Choice
from coreg_sim.federation.simulate import rmse
from coreg_sim.tables import COUPLING, ID, MODELS, POLICY, TARGET, DemoData, federation_toml
from examples.demo.processes import enrol, run, together
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.data.tables import read_table
from site_agent.models.file import load_model
from site_agent.models.findings import recommended

SCORING = '[study]\nname = "scores"\n\n[model]\nobjective = "scoring"\n'


def prepare_sites(work: Path, data: DemoData) -> None:
    """Certificates, a policy with pinned peers, and the files of every federation, in ``work``."""
    sites = sorted(data.tables)
    (work / "federation").mkdir()
    for name in MODELS:
        (work / "federation" / f"{name}.toml").write_text(federation_toml(name, sites), encoding="utf-8")
    (work / "federation" / "federation.toml").write_text(federation_toml("additive", sites), encoding="utf-8")
    (work / "scoring.toml").write_text(SCORING, encoding="utf-8")
    enrol(work, sites)
    pinned = (work / "peers.toml").read_text(encoding="utf-8")
    (work / "policy.toml").write_text(f"{POLICY}\n{pinned}", encoding="utf-8")


def train(work: Path, data: DemoData, name: str) -> float:
    """Train one of `MODELS` to `NAME-SITE.model` and `NAME-SITE-local.model`; the seconds that it took."""
    agents = {
        site: [
            "--data", table, "--unlabelled", data.shared[site], "--target", TARGET, "--id", ID, "--policy", "policy.toml",
            "--output", f"{name}-{site}.model",
        ]
        for site, table in data.tables.items()
    }  # fmt: skip
    return together(work, name, ["run", f"federation/{name}.toml"], agents)


def score(work: Path, data: DemoData) -> tuple[dict[str, float], float]:
    """Score the held-out patients with every site's part. Returns the error of each site's scores, and the seconds."""
    agents = {
        site: [
            "score", "--model", f"additive-{site}.model", "--data", table, "--id", ID, "--policy", "policy.toml",
            "--output", f"{site}-scores.csv",
        ]
        for site, table in data.held_out.items()
    }  # fmt: skip
    seconds = together(work, "scoring", ["run", "federation/additive.toml", "--study", "scoring.toml"], agents)
    errors = {}
    for site in data.tables:
        table = read_table(work / f"{site}-scores.csv")
        scores = dict(zip(table.ids(ID), table.numbers("score").tolist(), strict=True))
        errors[site] = rmse(np.array([scores[i] for i in read_table(data.held_out[site]).ids(ID)]), data.held_out_y)
    return errors, seconds


def pooled(data: DemoData) -> float:
    """The error with all rows and columns in one place, for reference: data would have to leave the sites."""
    everything, terms = data.everything, Additive(tuning_steps=0, landmarks=150)
    site = AdditiveSite(everything.X, everything.y, everything.Z, terms, name="pooled")
    train_dense(terms, [site], len(everything.Z))
    assert site.model is not None
    assert site.model.alone is not None
    return rmse(site.model.alone.predict(everything.held_out), data.held_out_y)


def judged(
    work: Path, data: DemoData, scored: dict[str, float]
) -> tuple[dict[str, dict[str, float]], dict[str, list[str]]]:
    """Each site's errors on the held-out patients and its forecast, and its report's recommendation."""
    errors: dict[str, dict[str, float]] = {}
    advice: dict[str, list[str]] = {}
    for site in sorted(data.tables):
        table = read_table(data.held_out[site])
        alone, own = (load_model(work / f"additive-{site}{end}.model") for end in ("-local", ""))
        assert own.found is not None
        labels = read_table(data.tables[site]).numbers(TARGET)
        scored_together = own.found["score"] == Choice.TOGETHER.value  # a site's own cross-validation decides
        errors[site] = {
            "rmse_mean": rmse(np.full(len(data.held_out_y), np.nanmean(labels)), data.held_out_y),
            "rmse_alone": rmse(alone.predict(table), data.held_out_y),
            "rmse_own": rmse(own.predict(table), data.held_out_y),
            "rmse_together": scored[site],
            "rmse_checked": scored[site] if scored_together else rmse(alone.predict(table), data.held_out_y),
            "forecast": own.found["joined"]["rmse"] / own.found["alone"]["rmse"] - 1.0,
        }
        advice[site] = recommended(own.found)
    return errors, advice


def stored(work: Path, name: str) -> dict[str, Any]:
    """The run of one of `MODELS` as `coreg-coordinator show --json` prints it."""
    store = ("--store", f"federation/{name}.sqlite", "--json")
    [summary] = map(json.loads, run("coordinator.cli.app", "runs", *store, cwd=work).splitlines())
    shown: dict[str, Any] = json.loads(run("coordinator.cli.app", "show", summary["run"], *store, cwd=work))
    return shown


def distance_from_closed_form(work: Path, data: DemoData) -> float:
    """The largest difference of a prediction from coRLSR's closed form, computed on all tables in one place."""
    sites = sorted(data.tables)
    prepared = {
        s: prepare(Inputs(table=data.tables[s], unlabelled=data.shared[s], target=TARGET, id=ID)) for s in sites
    }
    means = {s: float(prepared[s].data.y.mean()) for s in sites}
    central = CoRLSR(preset="paper", form="exact", coupling=COUPLING, solver="closed-form").fit(
        [prepared[s].data.X for s in sites],
        [prepared[s].data.y - means[s] for s in sites],
        [prepared[s].data.Z for s in sites],
    )
    tables = {s: read_table(data.held_out[s]) for s in sites}
    exact = central.predict_views([prepared[s].preprocessing.transform(tables[s]) for s in sites])
    models = {s: load_model(work / f"agreement-{s}.model") for s in sites}
    shared = central.predictions_unlabelled_
    return float(
        max(
            np.abs(models[s].predict(rows) - (values + means[s])).max()
            for v, s in enumerate(sites)
            for rows, values in ((tables[s], exact[v]), (prepared[s].table.unlabelled, shared[v]))
        )
    )


def seconds_told(spent: Mapping[str, float]) -> str:
    """The seconds of each federation in a line."""
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in spent.items())
