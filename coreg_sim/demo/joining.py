"""The demonstration's second half: what joining brings each site, in the service itself, on patients that nobody trained on.

Four more federations of the same sites, by the commands that operators type: coRLSR on a path of λ, the additive objective with
each site's own rows, the same with all labelled patients among the shared ones, and then the held-out patients scored together.
One table at the end, in which every column shares one rule of width and ridge (leave-one-out on own labels), beside the means
over the draws that benchmarks/diabetes.py made. Nothing is tuned, and what comes out worse stands there too.
"""

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as Shown

from coreg_core.additive.model.terms import Additive
from coreg_core.additive.reference.dense_training import train_dense
from coreg_core.additive.site import AdditiveSite
from coreg_sim.demo.diabetes import ID, TARGET, Dealt
from coreg_sim.demo.processes import together
from coreg_sim.federation.simulate import rmse
from site_agent.data.tables import read_table
from site_agent.models.file import load_model
from site_agent.models.findings import sentences

DRAWS = Path(__file__).with_name("diabetes_draws.json")
POLICY = 'objectives = ["agreement", "additive"]\ncommon_rows = true\nscoring = true\n'
SERVICE = """
[service]
listen = "127.0.0.1:0"
store = "{store}.sqlite"

[privacy]
answers = "sums"

[timeouts]
join = 60
plan = 60
round = 30
stall = 30
"""
# Three federations that differ in what they train, and in nothing else.
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
    head = f'[federation]\nname = "diabetes study: {name}"\nsites = {json.dumps(sites)}\n\n[model]\n'
    return head + MODELS[name] + "\n" + SERVICE.format(store=name)


def train(work: Path, dealt: Dealt, name: str) -> float:
    """One of `MODELS`, to the sites' model files; the seconds that it took."""
    sites = sorted(dealt.tables)
    (work / "federation" / f"{name}.toml").write_text(federation_toml(name, sites), encoding="utf-8")
    pinned = (work / "peers.toml").read_text(encoding="utf-8")
    (work / "policy.toml").write_text(f"{POLICY}\n{pinned}", encoding="utf-8")
    agents = {}
    for site in sites:
        own = ["--data", dealt.tables[site], "--target", TARGET, "--id", ID, "--policy", "policy.toml"]
        if name == "common":
            own += ["--unlabelled", dealt.common[site]]
        agents[site] = [*own, "--output", f"{name}-{site}.model"]
    return together(work, name, ["run", f"federation/{name}.toml"], agents)


def score(work: Path, dealt: Dealt) -> tuple[dict[str, float], float]:
    """The held-out patients, scored by every site's part: id to score, and the seconds."""
    agents = {
        site: [
            "score", "--model", f"common-{site}.model", "--data", dealt.held_out[site], "--id", ID,
            "--policy", "policy.toml", "--output", f"{site}-scores.csv",
        ]
        for site in sorted(dealt.tables)
    }  # fmt: skip
    seconds = together(work, "scoring", ["score", "federation/common.toml"], agents)
    table = read_table(work / f"{min(dealt.tables)}-scores.csv")
    return dict(zip(table.ids(ID), table.numbers("score").tolist(), strict=True)), seconds


def pooled(dealt: Dealt) -> float:
    """Everything in one place, by the same rule of width and ridge: what nobody may do."""
    everything, terms = dealt.everything, Additive(tuning_steps=0, landmarks=150)
    site = AdditiveSite(everything.X, everything.y, everything.Z, terms, name="pooled")
    train_dense(terms, [site], len(everything.Z))
    assert site.model is not None
    assert site.model.alone is not None
    return rmse(site.model.alone.predict(everything.held_out), dealt.held_out_y)


def joining(work: Path, dealt: Dealt) -> tuple[dict[str, dict[str, float]], dict[str, list[str]], dict[str, float]]:
    """Errors and forecast by site, what each site was told, and the seconds of each federation."""
    seconds = {name: train(work, dealt, name) for name in MODELS}
    scores, seconds["scoring"] = score(work, dealt)
    everything = pooled(dealt)
    found: dict[str, dict[str, float]] = {}
    told: dict[str, list[str]] = {}
    for site in sorted(dealt.tables):
        table = read_table(dealt.held_out[site])
        y = dealt.held_out_y
        models = {
            "rmse_alone": load_model(work / f"private-{site}-alone.model"),
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
        told[site] = sentences(own)
    return found, told, seconds


def show(found: dict[str, dict[str, float]], told: dict[str, list[str]], console: Console) -> None:
    """The one table, live beside the means over many draws, and what the sites were told."""
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
        "alone; coRLSR, each site's own λ; learnt together, predicting alone; scored together; all pooled, which nobody may do. "
        "forecast: what own labels said of learning together. All by one rule of width and ridge, leave-one-out on own labels."
    )
    for site, errors in found.items():
        change = 100 * (errors["rmse_joined"] / errors["rmse_alone"] - 1)
        paid = "paid" if change < 0 else "did not pay"
        console.print(
            f"{site}: learning together {paid} on these patients ({change:+.1f} %). It was told: {told[site][-1]}"
        )
    console.print(next(text for text in told[min(told)] if text.startswith("forecast")))
    other = draws["deals"]["80 / 10 / 0"]
    changes = {site: 100 * (row["joined"] / row["alone"] - 1) for site, row in other.items()}
    said = ", ".join(f"{site} {change:+.1f} %" for site, change in changes.items())
    console.print(
        f"dealt 80 / 10 / 0 labels instead, learning together changes the error by {said} (means of {draws['draws']} draws): "
        + _who_gains(changes)
    )


def _who_gains(changes: dict[str, float]) -> str:
    little = [site for site, change in changes.items() if change > -1.0]
    return f"it hardly pays for {', '.join(little)}, who may stay alone" if little else "it pays for all"
