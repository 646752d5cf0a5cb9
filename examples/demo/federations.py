"""The demonstration's federations: their configuration files, and the commands that an operator would type.

Three sites train with the additive objective, score the held-out patients together, and then run coRLSR, whose result is
compared with the centralised closed form.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coreg_core.estimators import AdditiveRegressor, CoRLSR
from coreg_core.objectives.additive import Additive
from coreg_sim.federation.simulate import rmse
from coreg_sim.tables import COUPLING, ID, LABELLED, MODELS, SITES, TARGET, DemoData, federation_toml
from examples.demo.processes import enrol, run, together
from site_agent.config.starter import POLICY
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.data.tables import read_table
from site_agent.models.file import load_model

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


def judged(work: Path, data: DemoData, scored: dict[str, float]) -> dict[str, dict[str, Any]]:
    """Each site's errors on the held-out patients, its forecasts of their change, and its recommendation."""
    found = {}
    for site in sorted(data.tables):
        table = read_table(data.held_out[site])
        local, joined = (load_model(work / f"additive-{site}{end}.model") for end in ("-local", ""))
        assert joined.found is not None
        labels = read_table(data.tables[site]).numbers(TARGET)
        found[site] = {
            "mean": rmse(np.full(len(data.held_out_y), labels.mean()), data.held_out_y),
            "local": rmse(local.predict(table), data.held_out_y),
            "joined": rmse(joined.predict(table), data.held_out_y),
            "score": scored[site],
            "forecast": {model: joined.found[model]["change"] for model in ("joined", "score")},
            "recommended": joined.found["recommended"],
        }
    return found


def in_memory(data: DemoData) -> tuple[dict[str, dict[str, float]], float]:
    """Errors of the same training in memory, without noise; and of a local model of all rows and columns in one place."""
    X, y, new = data.everything.X, data.everything.y, data.everything.held_out
    views = np.split(np.arange(X.shape[1]), np.cumsum([*map(len, SITES.values())])[:-1])
    own = np.arange(len(y))[:, None] // LABELLED == np.arange(len(views))
    model = AdditiveRegressor(views=views, rows_per_feature=Additive().rows_per_feature).fit(X, y, label_mask=own)
    score = rmse(model.predict(new), data.held_out_y)
    errors = {
        site: {"joined": rmse(predicted, data.held_out_y), "score": score}
        for site, predicted in zip(SITES, model.predict_views(new), strict=True)
    }
    pooled = AdditiveRegressor().fit(X, y).trained_.sites[0].local
    assert pooled is not None
    return errors, rmse(pooled.predict(new), data.held_out_y)


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
