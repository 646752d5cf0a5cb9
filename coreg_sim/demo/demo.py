"""`make demo`: three sites train together over mutual TLS on real patients' records: what it comes to, and what it brings whom.

First the paper's coRLSR, certified, beside the centralised closed form; then (`coreg_sim.demo.joining`) parts that
add up, and scoring together, in one table.

A coordinator and three agents as separate processes, started by the commands that an operator types; certificates made by
the real commands; an ephemeral port on loopback; everything cleaned up. Exit code 0 only if the run converged and every
site's predictions are within 1e-6 of the centralised closed form. Nothing is tuned: where coupling does not help a site
in this draw, the table says so.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as Shown

from coreg_core.estimators import CoRLSR
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.threads import pin_threads
from coreg_sim.demo import joining
from coreg_sim.demo.diabetes import ID, TARGET, DemoData, write_tables
from coreg_sim.demo.processes import DemoFailed, enrol, run, together
from coreg_sim.federation.simulate import rmse
from coreg_wire.terminal import svg
from coreg_wire.terminal.output import human_bytes
from coreg_wire.terminal.svg import Series
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.data.tables import read_table
from site_agent.ledger import read_ledger
from site_agent.models.file import load_model

CLOSE_ENOUGH = 1e-6


def federate(work: Path, data: DemoData) -> tuple[dict[str, Any], float]:
    """Enrol, serve, join, wait; the stored run, and the seconds from the coordinator's start to the last model."""
    (work / "federation").mkdir()
    (work / "federation" / "federation.toml").write_text(
        joining.federation_toml("agreement", sorted(data.tables)), encoding="utf-8"
    )
    enrol(work, sorted(data.tables))
    pinned = (work / "peers.toml").read_text(encoding="utf-8")
    (work / "policy.toml").write_text(f"{joining.POLICY}\n{pinned}", encoding="utf-8")
    agents = {
        site: [
            "--data", table, "--target", TARGET, "--id", ID, "--output", f"{site}.model", "--local-model", f"{site}-local.model",
            "--policy", "policy.toml",
        ]
        for site, table in data.tables.items()
    }  # fmt: skip
    seconds = together(work, "agreement", ["run", "federation/federation.toml"], agents, shown=True)
    stored = ("--store", "federation/agreement.sqlite", "--json")
    [summary] = map(json.loads, run("coordinator.cli.app", "runs", *stored, cwd=work).splitlines())
    return json.loads(run("coordinator.cli.app", "show", summary["run"], *stored, cwd=work)), seconds


def judge(work: Path, data: DemoData) -> tuple[dict[str, dict[str, float]], float, float, float]:
    """Held-out errors by site, those of the mean, and the largest difference from the closed form.

    The closed form is `CoRLSR(solver="direct")` on all tables together.
    """
    sites = sorted(data.tables)
    prepared = {s: prepare(Inputs(table=data.tables[s], target=TARGET, id=ID)) for s in sites}
    means = {s: float(prepared[s].data.y.mean()) for s in sites}
    central = CoRLSR(form="exact", coupling=joining.COUPLING, solver="direct").fit(
        [prepared[s].data.X for s in sites],
        [prepared[s].data.y - means[s] for s in sites],
        [prepared[s].data.Z for s in sites],
    )
    tables = {s: read_table(data.held_out[s]) for s in sites}
    held_out = [prepared[s].preprocessing.transform(tables[s]) for s in sites]
    exact = dict(zip(sites, central.predict_views(held_out), strict=True))
    exact_shared = dict(zip(sites, central.predictions_unlabelled_, strict=True))
    errors: dict[str, dict[str, float]] = {}
    alone: list[Arr] = []
    together: list[Arr] = []
    off = 0.0
    for s in sites:
        model, own = load_model(work / f"{s}.model"), load_model(work / f"{s}-local.model")
        together.append(model.predict(tables[s]))
        alone.append(own.predict(tables[s]))
        shared = model.predict(prepared[s].table.unlabelled)
        off = max(
            off,
            float(np.abs(together[-1] - (exact[s] + means[s])).max()),
            float(np.abs(shared - (exact_shared[s] + means[s])).max()),
        )
        y = data.held_out_y
        errors[s] = {"rmse_alone": rmse(alone[-1], y), "rmse_federated": rmse(together[-1], y)}
    mean_alone = rmse(np.mean(alone, axis=0), data.held_out_y)
    mean_together = rmse(np.mean(together, axis=0), data.held_out_y)
    return errors, mean_alone, mean_together, off


def draw(rounds: list[dict[str, Any]], path: Path) -> None:
    """The convergence as a picture: estimates as lines, certified values as dots."""
    known = [r for r in rounds if r["gap"] and r["gap"][0] > 0]
    series = []
    for key, name in (("gap", "gap"), ("bound", "error")):
        x, y = tuple(float(r["round"]) for r in known), tuple(max(r[key]) for r in known)
        sure = [i for i, r in enumerate(known) if r["verified"]]
        series.append(Series(f"{name}, estimated", x, y, "bare line"))
        series.append(Series(f"{name}, certified", tuple(x[i] for i in sure), tuple(y[i] for i in sure)))
    x_label = "round: one vector of predictions each way"
    plot = svg.Plot("convergence", "Convergence", x_label, "at most", tuple(series), log_y=True)
    path.write_text(svg.draw(plot), encoding="utf-8")


def show(report: dict[str, Any], work: Path, console: Console) -> None:
    table = Shown(title="root mean square error on 100 held-out patients", box=None, header_style="bold")
    for heading in ("", "alone", "federated", "change"):
        table.add_column(heading, justify="left" if not heading else "right")
    means = {
        "mean of the sites": {"rmse_alone": report["rmse_mean_alone"], "rmse_federated": report["rmse_mean_federated"]}
    }
    for name, errors in {**report["sites"], **means}.items():
        alone, federated = errors["rmse_alone"], errors["rmse_federated"]
        table.add_row(name, f"{alone:.3f}", f"{federated:.3f}", f"{(federated / alone - 1) * 100:+.2f} %")
    console.print()
    console.print(table)
    worse = [name for name, e in report["sites"].items() if e["rmse_federated"] >= e["rmse_alone"]]
    if worse:
        console.print(f"In this draw the coupling does not help {', '.join(worse)}: such a site keeps its own model.")
    console.print(
        f"largest difference from the centralised closed form: {report['max_abs_error_vs_closed_form']:.1e} "
        f"(certified gap {report['certified_gap']:.1e} after {report['rounds']} rounds, {report['seconds']:.1f} s)"
    )
    console.print(f"bytes a round, both ways, all sites: {human_bytes(report['bytes_per_round'])}")
    console.print("what left each site, by its ledger (the chain is checked):")
    for site in report["sites"]:
        kinds: dict[str, int] = {}
        numbers = with_labels = sealed = 0
        for entry in read_ledger(work / site / "ledger.jsonl"):
            if entry["kind"] == "Countersigned":
                continue  # it came; it did not leave
            kinds[entry["kind"]] = kinds.get(entry["kind"], 0) + 1
            numbers += entry.get("numbers", 0)
            with_labels += entry.get("labels") == "in the vectors"
            sealed += entry.get("sent") == "sealed"
        sent = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        console.print(
            f"  {site}: {sent}; {numbers} numbers in all, {sealed} answers sealed; labels are in {with_labels} of them"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-out"), help="report.json and convergence.svg go here")
    parser.add_argument("--seed", type=int, default=0, help="another draw of patients")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # an uninstalled checkout works too
    try:
        with tempfile.TemporaryDirectory(prefix="coreg-demo-") as folder:
            good = _demonstrate(Path(folder), options.seed, options.output)
    except DemoFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)  # noqa: T201
        return 1
    if not good:
        print("demo: not converged, or not within 1e-6 of the closed form", file=sys.stderr)  # noqa: T201
    return 0 if good else 1


def _demonstrate(work: Path, seed: int, output: Path) -> bool:
    console = Console(highlight=False, soft_wrap=True)
    data = write_tables(work, seed)
    console.print("a clinic and two laboratories, 15 labelled patients each, 250 shared without labels, λ = 0.01")
    stored, seconds = federate(work, data)
    pin_threads(1)
    errors, mean_alone, mean_together, off = judge(work, data)
    rounds = stored["rounds"]
    report = {
        "stop": stored["stop"],
        "rounds": max(r["round"] for r in rounds),
        "certified_gap": max([r for r in rounds if r["verified"]][-1]["gap"]),
        "max_abs_error_vs_closed_form": off,
        "sites": errors,
        "rmse_mean_alone": mean_alone,
        "rmse_mean_federated": mean_together,
        "bytes_per_round": float(np.median([r["bytes_sent"] + r["bytes_received"] for r in rounds])),
        "seconds": round(seconds, 3),
    }
    draw(rounds, output / "convergence.svg")
    show(report, work, console)
    console.print("\nnow the same sites, by the same commands: a path of λ, parts that add up, and scoring together …")
    joined, advice, spent = joining.joining(work, data)
    report["joined"] = {site: {key: e[key] for key in joining.KEYS} for site, e in joined.items()}
    (output / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    joining.show(joined, advice, console)
    console.print(", ".join(f"{name} {taken:.1f} s" for name, taken in {"coRLSR": seconds, **spent}.items()))
    console.print(f"written: {output / 'report.json'}, {output / 'convergence.svg'}")
    return bool(report["stop"] == "CONVERGED" and off <= CLOSE_ENOUGH)
