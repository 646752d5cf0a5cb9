"""The demonstration's second half: each site's benefit from joining, through the service, on held-out patients.

It runs four more federations of the same sites by an operator's commands: coRLSR on a path of λ, the additive objective with
each site's own rows, the same with all labelled patients among the shared ones, and the held-out patients scored together. The
table has one rule of width and ridge in every column (leave-one-out on own labels), and the means over the draws of
benchmarks/diabetes.py. Nothing is tuned, and the table also shows where joining is worse.
"""

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Shown

from coreg_core.additive.model.terms import Additive
from coreg_core.additive.reference.dense_training import train_dense
from coreg_core.additive.site import AdditiveSite
from coreg_sim.demo.diabetes import ID, TARGET, DemoData
from coreg_sim.demo.processes import together
from coreg_sim.federation.simulate import rmse
from site_agent.data.tables import read_table
from site_agent.models.file import load_model
from site_agent.models.findings import sentences

DRAWS = Path(__file__).with_name("diabetes_draws.json")
# One owner runs these sites. So members may learn operators, which paths of λ, tuning and folds let them compute, and the
# coordinator may have the exact table of convergence, which the demonstration draws.
POLICY = """\
objectives = ["agreement", "additive"]
common_rows = true
scoring = true
members_may_learn = "operators"
convergence_report = "exact"
"""
COUPLING = 0.01
SERVICE = """
[service]
listen = "127.0.0.1:0"
store = "{store}.sqlite"

[privacy]
aggregation = "secure"
convergence_report = "exact"

[timeouts]
join = 60
plan = 60
round = 30
stall = 30
"""
AGREEMENT = f"""\
form = "exact"
coupling = {COUPLING}
label_units = "centred"

[schedule]
name = "conjugate-gradients"
tolerance = 1e-10
prediction_tolerance = 1e-7
"""
SCORING = '[study]\nname = "scores"\n\n[model]\nobjective = "scoring"\n'
# Three federations that differ only in their [model].
MODELS = {
    "path": 'bandwidth = "loo"\nridge = "loo"\ncoupling = { relative = [0.1, 0.3, 1.0, 3.0] }',
    "private": 'objective = "additive"\nforecast = true',
    "common": 'objective = "additive"\nrows = "common"\nforecast = true',
}
COLUMNS = {
    "rmse_alone": ("alone", "alone"),
    "rmse_agreement": ("coRLSR", "agreement"),
    "rmse_joined": ("learnt", "joined"),
    "rmse_together": ("scored", "together"),
    "rmse_pooled": ("pooled", "pooled"),
}
KEYS = ("rmse_alone", "rmse_agreement", "rmse_joined", "rmse_together", "forecast")


def federation_toml(name: str, sites: list[str]) -> str:
    """One of `MODELS`, or "agreement": the first half's, which docker compose runs, too."""
    head = f'[federation]\nname = "diabetes study: {name}"\nsites = {json.dumps(sites)}\n\n[model]\n'
    return head + MODELS.get(name, AGREEMENT) + "\n" + SERVICE.format(store=name)


def train(work: Path, data: DemoData, name: str) -> float:
    """One of `MODELS`, to the sites' model files; the seconds that it took."""
    sites = sorted(data.tables)
    (work / "federation" / f"{name}.toml").write_text(federation_toml(name, sites), encoding="utf-8")
    agents = {}
    for site in sites:
        own = ["--data", data.tables[site], "--target", TARGET, "--id", ID, "--policy", "policy.toml"]
        if name == "common":
            own += ["--unlabelled", data.common[site]]
        agents[site] = [*own, "--output", f"{name}-{site}.model"]
    return together(work, name, ["run", f"federation/{name}.toml"], agents)


def score(work: Path, data: DemoData) -> tuple[dict[str, float], float]:
    """The held-out patients, scored by every site's part: id to score, and the seconds."""
    agents = {
        site: [
            "score", "--model", f"common-{site}.model", "--data", data.held_out[site], "--id", ID,
            "--policy", "policy.toml", "--output", f"{site}-scores.csv",
        ]
        for site in sorted(data.tables)
    }  # fmt: skip
    (work / "scoring.toml").write_text(SCORING, encoding="utf-8")
    seconds = together(work, "scoring", ["run", "federation/common.toml", "--study", "scoring.toml"], agents)
    table = read_table(work / f"{min(data.tables)}-scores.csv")
    return dict(zip(table.ids(ID), table.numbers("score").tolist(), strict=True)), seconds


def pooled(data: DemoData) -> float:
    """The error with all data in one place and the same rule of width and ridge, for reference."""
    everything, terms = data.everything, Additive(tuning_steps=0, landmarks=150)
    site = AdditiveSite(everything.X, everything.y, everything.Z, terms, name="pooled")
    train_dense(terms, [site], len(everything.Z))
    assert site.model is not None
    assert site.model.alone is not None
    return rmse(site.model.alone.predict(everything.held_out), data.held_out_y)


def joining(work: Path, data: DemoData) -> tuple[dict[str, dict[str, float]], dict[str, list[str]], dict[str, float]]:
    """Errors and forecast by site, the sentences of each site's report, and the seconds of each federation."""
    seconds = {name: train(work, data, name) for name in MODELS}
    scores, seconds["scoring"] = score(work, data)
    everything = pooled(data)
    found: dict[str, dict[str, float]] = {}
    advice: dict[str, list[str]] = {}
    for site in sorted(data.tables):
        table = read_table(data.held_out[site])
        y = data.held_out_y
        models = {
            "rmse_alone": load_model(work / f"private-{site}-local.model"),
            "rmse_agreement": load_model(work / f"path-{site}.model"),
            "rmse_joined": load_model(work / f"private-{site}.model"),
        }
        errors = {name: rmse(model.predict(table), y) for name, model in models.items()}
        errors["rmse_together"] = rmse(np.array([scores[i] for i in table.ids(ID)]), y)
        own = models["rmse_joined"].found
        assert own is not None
        assert own["joined"] is not None
        errors["forecast"] = own["joined"]["rmse"] / own["alone"]["rmse"] - 1.0
        errors["rmse_pooled"] = everything
        found[site] = errors
        advice[site] = sentences(own)
    return found, advice, seconds


def show(found: dict[str, dict[str, float]], advice: dict[str, list[str]], console: Console) -> None:
    """The table of this draw beside the means over many draws, and the sites' reports."""
    draws = json.loads(DRAWS.read_text(encoding="utf-8"))
    many = draws["deals"]["15 each"]
    table = Shown(title="root mean square error on the 100 held-out patients", box=None, header_style="bold")
    for heading in ("", *(title for title, _ in COLUMNS.values()), "forecast"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for site, errors in found.items():
        cells = [f"{errors[key]:.1f}" for key in COLUMNS]
        table.add_row(site, *cells, f"{100 * errors['forecast']:+.1f} %")
        means = [f"{many[site][mean]:.1f}" for _, mean in COLUMNS.values()]
        table.add_row(
            f"  mean of {draws['draws']} draws", *means, f"{100 * many[site]['forecast']:+.1f} %", style="dim"
        )
    console.print()
    console.print(table)
    console.print(
        "alone; coRLSR, each site's own λ; learnt together, predicting alone; scored together; pooled, for reference. "
        "forecast: of learning together, by own labels. All by one rule of width and ridge, leave-one-out on own labels."
    )
    for site, errors in found.items():
        change = 100 * (errors["rmse_joined"] / errors["rmse_alone"] - 1)
        paid = "paid" if change < 0 else "did not pay"
        console.print(
            f"{site}: learning together {paid} on these patients ({change:+.1f} %). Its report: {advice[site][-1]}"
        )
    console.print(next(text for text in advice[min(advice)] if text.startswith("forecast")))
    other = draws["deals"]["80 / 10 / 0"]
    changes = {site: 100 * (row["joined"] / row["alone"] - 1) for site, row in other.items()}
    listed = ", ".join(f"{site} {change:+.1f} %" for site, change in changes.items())
    little = [site for site, change in changes.items() if change > -1.0]
    pays = f"it hardly pays for {', '.join(little)}" if little else "it pays for all"
    console.print(
        f"with 80 / 10 / 0 labels instead, learning together changes the error by {listed} (means of {draws['draws']} "
        f"draws): {pays}"
    )
