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
from coreg_sim.demo.diabetes import ID, TARGET, Dealt, deal
from coreg_sim.demo.processes import DemoFailed, enrol, run, together
from coreg_sim.federation.simulate import rmse
from coreg_wire.terminal.output import human_bytes
from site_agent.data.prepare import Inputs, prepare
from site_agent.data.tables import read_table
from site_agent.ledger import read_ledger
from site_agent.models.file import load_model

COUPLING = 0.01
CLOSE_ENOUGH = 1e-6

FEDERATION = """\
[federation]
name = "diabetes study, three sites"
sites = {sites}

[model]
form = "exact"
coupling = {coupling}
label_units = "centred"

[schedule]
name = "conjugate-gradients"
tolerance = 1e-10
prediction_tolerance = 1e-7

[privacy]
answers = "sums"

[service]
listen = "127.0.0.1:0"

[timeouts]
join = 60
plan = 60
round = 30
stall = 30
"""


def federation_toml(sites: Sequence[str]) -> str:
    """The demonstration's federation.toml; docker compose runs the same one."""
    return FEDERATION.format(sites=json.dumps(list(sites)), coupling=COUPLING)


def federate(work: Path, dealt: Dealt) -> tuple[dict[str, Any], float]:
    """Enrol, serve, join, wait; the stored run, and the seconds from the coordinator's start to the last model."""
    (work / "federation").mkdir()
    (work / "federation" / "federation.toml").write_text(federation_toml(sorted(dealt.tables)), encoding="utf-8")
    enrol(work, sorted(dealt.tables))
    agents = {
        site: [
            "--data",
            table,
            "--target",
            TARGET,
            "--id",
            ID,
            "--output",
            f"{site}.model",
            "--alone",
            f"{site}-alone.model",
            "--policy",
            "peers.toml",
        ]
        for site, table in dealt.tables.items()
    }
    seconds = together(work, "agreement", ["run", "federation/federation.toml"], agents, shown=True)
    [summary] = [json.loads(line) for line in run("coordinator.cli.app", "runs", "--store", "federation/runs.sqlite",
                                                  "--json", cwd=work).splitlines()]  # fmt: skip
    shown = run("coordinator.cli.app", "show", summary["run"], "--store", "federation/runs.sqlite", "--json", cwd=work)
    return json.loads(shown), seconds


def judge(work: Path, dealt: Dealt) -> tuple[dict[str, dict[str, float]], float, float, float]:
    """Held-out errors by site, those of the mean, and the largest difference from the closed form.

    The closed form is `CoRLSR(solver="direct")` on all the tables together: what the sites may not do.
    """
    sites = sorted(dealt.tables)
    prepared = {s: prepare(Inputs(dealt.tables[s], TARGET, ID)) for s in sites}
    means = {s: float(prepared[s].data.y.mean()) for s in sites}
    central = CoRLSR(form="exact", coupling=COUPLING, solver="direct").fit(
        [prepared[s].data.X for s in sites],
        [prepared[s].data.y - means[s] for s in sites],
        [prepared[s].data.Z for s in sites],
    )
    tables = {s: read_table(dealt.held_out[s]) for s in sites}
    held_out = [prepared[s].preprocessing.transform(tables[s]) for s in sites]
    exact = dict(zip(sites, central.predict_views(held_out), strict=True))
    exact_shared = dict(zip(sites, central.predictions_unlabelled_, strict=True))
    errors: dict[str, dict[str, float]] = {}
    alone: list[Arr] = []
    together: list[Arr] = []
    off = 0.0
    for s in sites:
        model, own = load_model(work / f"{s}.model"), load_model(work / f"{s}-alone.model")
        together.append(model.predict(tables[s]))
        alone.append(own.predict(tables[s]))
        shared = model.predict(prepared[s].table.unlabelled)
        off = max(
            off,
            float(np.abs(together[-1] - (exact[s] + means[s])).max()),
            float(np.abs(shared - (exact_shared[s] + means[s])).max()),
        )
        y = dealt.held_out_y
        errors[s] = {"rmse_alone": rmse(alone[-1], y), "rmse_federated": rmse(together[-1], y)}
    mean_alone = rmse(np.mean(alone, axis=0), dealt.held_out_y)
    mean_together = rmse(np.mean(together, axis=0), dealt.held_out_y)
    return errors, mean_alone, mean_together, off


def draw(rounds: list[dict[str, Any]], path: Path) -> None:
    """The convergence as a picture: estimates as a line, certificates as dots."""
    import matplotlib as mpl  # only here: the product does not need it

    mpl.use("svg")
    from matplotlib import pyplot as plt

    shown = [r for r in rounds if r["gap"] is not None and r["gap"][0] > 0]
    number, gap, bound = (
        [r["round"] for r in shown],
        [max(r["gap"]) for r in shown],
        [max(r["prediction_bound"]) for r in shown],
    )
    sure = [i for i, r in enumerate(shown) if r["verified"]]
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for values, colour, label in (
        (gap, "#1f5fa8", "gap in the objective, at most"),
        (bound, "#b5541c", "error of a site's predictions, at most"),
    ):
        axes.semilogy(number, values, color=colour, alpha=0.6, label=f"{label} (estimate)")
        axes.semilogy(
            [number[i] for i in sure], [values[i] for i in sure], "o", color=colour, label=f"{label} (certified)"
        )
    axes.set_xlabel("round: one vector of predictions each way")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path)
    plt.close(figure)


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
        numbers = affine = masked = 0
        for entry in read_ledger(work / site / "ledger.jsonl"):
            if entry["kind"] == "Countersigned":
                continue  # it came; it did not leave
            kinds[entry["kind"]] = kinds.get(entry["kind"], 0) + 1
            numbers += entry.get("numbers", 0)
            affine += entry.get("part") == "affine"
            masked += entry.get("sent") == "masked"
        said = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        console.print(
            f"  {site}: {said}; {numbers} numbers in all, {masked} answers masked; labels are in {affine} of them"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-out"), help="report.json and convergence.svg go here")
    parser.add_argument("--seed", type=int, default=0, help="another draw of patients")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    options.output.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # an uninstalled checkout works too
    with tempfile.TemporaryDirectory(prefix="coreg-demo-") as folder:
        work = Path(folder)
        dealt = deal(work, options.seed)
        console.print("a clinic and two laboratories, 15 labelled patients each, 250 shared without labels, λ = 0.01")
        try:
            stored, seconds = federate(work, dealt)
            pin_threads(1)
            errors, mean_alone, mean_together, off = judge(work, dealt)
        except DemoFailed as failure:
            print(f"demo: {failure}", file=sys.stderr)  # noqa: T201
            return 1
        rounds = stored["rounds"]
        verified = [r for r in rounds if r["verified"]]
        report = {
            "stop": stored["stop"],
            "rounds": len(rounds),
            "certified_gap": max(verified[-1]["gap"]),
            "max_abs_error_vs_closed_form": off,
            "sites": errors,
            "rmse_mean_alone": mean_alone,
            "rmse_mean_federated": mean_together,
            "bytes_per_round": float(np.median([r["bytes_sent"] + r["bytes_received"] for r in rounds])),
            "seconds": round(seconds, 3),
        }
        draw(rounds, options.output / "convergence.svg")
        show(report, work, console)
        console.print()
        console.print(
            "now the same sites, by the same commands: a path of λ, parts that add up, and scoring together …"
        )
        try:
            joined, told, spent = joining.joining(work, dealt)
        except DemoFailed as failure:
            print(f"demo: {failure}", file=sys.stderr)  # noqa: T201
            return 1
        report["joined"] = {site: {key: e[key] for key in joining.KEYS} for site, e in joined.items()}
        (options.output / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        joining.show(joined, told, console)
        console.print(", ".join(f"{name} {taken:.1f} s" for name, taken in {"coRLSR": seconds, **spent}.items()))
    console.print(f"written: {options.output / 'report.json'}, {options.output / 'convergence.svg'}")
    good = report["stop"] == "CONVERGED" and off <= CLOSE_ENOUGH
    if not good:
        print("demo: not converged, or not within 1e-6 of the closed form", file=sys.stderr)  # noqa: T201
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
