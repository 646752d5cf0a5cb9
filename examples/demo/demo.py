"""`make demo`: three sites train together over mutual TLS on real patients' records, and measure the gain of joining.

A coordinator and three agents run as separate processes, started by the commands that an operator types. Certificates come
from the real commands, the port is an ephemeral one on loopback, and all files are removed at the end. The exit code is 0
only if coRLSR converged and all its predictions are within 1e-6 of the centralised closed form. No parameter is tuned for
this draw: if joining makes a site worse, the table shows it.
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

from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.outcomes import Outcome
from coreg_sim.tables import write_tables
from coreg_wire.terminal import svg
from coreg_wire.terminal.output import human_bytes
from coreg_wire.terminal.svg import Series
from examples.demo import federations
from examples.demo.processes import DemoFailed
from site_agent.ledger import read_ledger

CLOSE_ENOUGH = 1e-6
DRAWS = Path(__file__).with_name("diabetes_draws.json")
COLUMNS = {"mean": "mean of labels", "local": "local model", "joined": "joined model", "score": "score"}
TITLE = "root mean square error on 80 held-out patients"


def draw(rounds: list[dict[str, Any]], path: Path) -> None:
    """The convergence as a picture: estimates as lines, certified values as dots."""
    known = [r for r in rounds if r["gap"] and r["gap"][0] > 0]
    x, y = tuple(float(r["round"]) for r in known), tuple(max(r["gap"]) for r in known)
    sure = [i for i, r in enumerate(known) if r["verified"]]
    series = (
        Series("gap, estimated", x, y, "bare line"),
        Series("gap, certified", tuple(x[i] for i in sure), tuple(y[i] for i in sure)),
    )
    x_label = "round: one vector of predictions each way"
    plot = svg.Plot("convergence", "coRLSR: upper bound", x_label, "gap, to a power of ten", series, log_y=True)
    path.write_text(svg.draw(plot), encoding="utf-8")


def draw_sites(sites: dict[str, dict[str, Any]], pooled: float, path: Path) -> None:
    """The errors of this draw as a picture: a row for each model, grouped by site, with its change against the local model."""
    left, width, row = 150, 330, 22
    every = [errors[key] for errors in sites.values() for key in COLUMNS]
    at = svg.scale(0.95 * min(*every, pooled), 1.02 * max(every), left, left + width)
    body = [svg.text(10, 20, TITLE, anchor="start", more=' font-weight="bold"')]
    y = 34
    for site, errors in sites.items():
        y += row + 8
        body.append(svg.text(10, y, site, anchor="start", more=' font-weight="bold"'))
        for colour, (key, name) in zip(svg.COLOURS, COLUMNS.items(), strict=False):
            y += row
            told = _cell(errors, key, errors["local"])
            body += [
                svg.text(left - 10, y + 4, name, anchor="end"),
                svg.line(at(errors["local"]), y, at(errors[key]), y, colour, ' stroke-width="2"'),
                svg.circle(at(errors[key]), y, 5, colour),
                svg.text(left + width + 10, y + 4, told, anchor="start"),
            ]
    body.append(svg.text(10, y + 2 * row, f"all data in one place, for reference: {pooled:.1f}", anchor="start"))
    path.write_text(svg.document(left + width + 120, y + 3 * row, body, font_size=13), encoding="utf-8")


def show(
    sites: dict[str, dict[str, Any]], memory: dict[str, dict[str, float]], pooled: float, console: Console
) -> None:
    """Print each site's errors in this draw, those in memory, the means over many draws, and each site's own forecast."""
    draws = json.loads(DRAWS.read_text(encoding="utf-8"))
    many = draws["deals"]["60 each"]
    table = Shown(title=TITLE, box=None, header_style="bold", padding=(0, 2, 0, 0))  # 79 columns
    for heading in ("", *COLUMNS.values()):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for site, errors in sites.items():
        table.add_row(site, *(_cell(errors, key, errors["local"]) for key in COLUMNS))
        table.add_row("  in memory", *(_cell(memory[site], key, errors["local"]) for key in COLUMNS), style="dim")
        table.add_row(
            f"  {draws['draws']} draws", *(_cell(many[site], key, many[site]["local"]) for key in COLUMNS), style="dim"
        )
    console.print()
    console.print(table)
    console.print(
        "in memory: AdditiveRegressor on the same rows, without the federation's noise on labels and moments\n"
        f"{draws['draws']} draws: means of earlier runs of benchmarks/diabetes.py\n"
        f"All rows and columns in one place (for reference; data would have to leave the sites): {pooled:.1f}"
    )
    wide = max(map(len, sites))
    console.print("\nchange of the error by each site's own forecast, and on these patients")
    for site, errors in sites.items():
        told = "; ".join(
            f"{COLUMNS[key]} {100 * change:+.1f} %, {100 * (errors[key] / errors['local'] - 1):+.1f} %"
            for key, change in errors["forecast"].items()
        )
        console.print(f"  {site:<{wide}}  {told}; recommended: {COLUMNS[errors['recommended']]}")
    console.print(f"\nwith 120, 60 and 0 labels instead of 60 each (means of {draws['draws']} draws)")
    for (site, row), labels in zip(draws["deals"]["120 / 60 / 0"].items(), (120, 60, 0), strict=True):
        against = "" if labels else ", against the mean of all labels"
        console.print(f"  {site:<{wide}}  score {100 * (row['score'] / row['local'] - 1):+.1f} %{against}")


def _cell(errors: dict[str, float], key: str, local: float) -> str:
    """An error, with its change against the local model's."""
    if key not in errors:
        return ""
    return f"{errors[key]:.1f}" + f" ({100 * (errors[key] / local - 1):+.1f} %)" * (key in ("joined", "score"))


def show_ledgers(work: Path, sites: Sequence[str], console: Console) -> None:
    """Print how many messages left each site, from its ledger; reading it verifies the chain."""
    console.print("\nwhat left each site, by its ledger (docs/concepts/disclosure.md)")
    for site in sites:
        sent = [entry for entry in read_ledger(work / site / "ledger.jsonl") if entry["kind"] != "Countersigned"]
        sealed = sum(entry.get("sent") == "sealed" for entry in sent)
        console.print(f"  {site:<{max(map(len, sites))}}  {len(sent)} messages ({sealed} with encrypted numbers)")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("demo-out"), help="folder for report.json and two pictures")
    parser.add_argument("--seed", type=int, default=0, help="another draw of patients")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # an uninstalled checkout works too
    try:
        with tempfile.TemporaryDirectory(prefix="coreg-demo-") as folder:
            good = _demonstrate(Path(folder), options.seed, options.output)
    except DemoFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    if not good:
        print("demo: not converged, or not within 1e-6 of the closed form", file=sys.stderr)
    return 0 if good else 1


def _demonstrate(work: Path, seed: int, output: Path) -> bool:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        "A clinic and two laboratories know 362 patients by id. Each has other columns of them, and the labels of 60."
    )
    data, spent = write_tables(work, seed, common=True), dict[str, float]()
    federations.prepare_sites(work, data)
    console.print("1 of 3: training with the additive objective …")
    spent["training"] = federations.train(work, data, "additive")
    console.print("2 of 3: scoring the held-out patients together …")
    scored, spent["scoring"] = federations.score(work, data)
    pin_threads(1)
    sites = federations.judged(work, data, scored)
    memory, pooled = federations.in_memory(data)
    show(sites, memory, pooled, console)
    console.print(
        f"\n3 of 3, a check for reviewers: coRLSR with λ = {federations.COUPLING:g}, beside the centralised closed form …"
    )
    spent["coRLSR"] = federations.train(work, data, "agreement")
    stored, off = federations.stored(work, "agreement"), federations.distance_from_closed_form(work, data)
    rounds = stored["rounds"]
    report = {
        "sites": sites,
        "in_memory": memory,
        "pooled": pooled,
        "stop": stored["stop"],
        "rounds": max(r["round"] for r in rounds),
        "certified_gap": max([r for r in rounds if r["verified"]][-1]["gap"]),
        "max_abs_error_vs_closed_form": off,
        "bytes_per_round": float(np.median([r["bytes_sent"] + r["bytes_received"] for r in rounds])),
        "seconds": {name: round(seconds, 3) for name, seconds in spent.items()},
    }
    draw(rounds, output / "convergence.svg")
    draw_sites(sites, pooled, output / "errors.svg")
    (output / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console.print(
        f"Largest difference from the closed form: {off:.1e}. Certified gap: {report['certified_gap']:.1e} after "
        f"{report['rounds']} rounds of {human_bytes(report['bytes_per_round'])} (all sites, both directions)."
    )
    show_ledgers(work, sorted(sites), console)
    console.print(f"\n{federations.seconds_told(spent)}")
    console.print(
        f"written: {output / 'errors.svg'} (the table), {output / 'report.json'}, {output / 'convergence.svg'} (upper bounds of "
        "coRLSR by round)"
    )
    console.print(
        "Next: docs/tutorials/quickstart.md, the commands one by one on other tables with ids that overlap in part."
    )
    return bool(Outcome[report["stop"]].good and off <= CLOSE_ENOUGH)
