"""`make demo`: three sites train together over mutual TLS on real patients' records, and measure
the gain of joining.

1. coRLSR in memory on two hospitals that measure the same condition, where its assumption holds.
2. On the patients, by processes: coRLSR by Algorithm 1 (block coordinate descent) and by conjugate
   gradients, with a path of λ, beside the centralised closed form.
3. The additive method on the same patients, whose columns are divided among the sites.

Beside the one draw of labels stand means of several draws. The processes are those that operators
start, by the same commands. The exit code is 0 only if coRLSR converged and all its predictions are
within 1e-6 standard deviations of the labels of the closed form. No parameter is tuned for this
draw: if joining makes a site worse, the table shows it.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from coreg_core.estimators import AdditiveRegressor
from coreg_core.objectives.agreement import Agreement
from coreg_core.threads import pin_threads
from coreg_sim.closed_form import closed_form, label_deviation, largest_distance
from coreg_sim.problems import Problem
from coreg_sim.simulate import plan_for, rmse
from coreg_wire.terminal.progress import WorkLine
from examples.demo import draws, shown, svg
from examples.demo.processes import DemoFailed, create, run, together
from examples.demo.svg import Plot, Series
from examples.demo.tables import COUPLINGS, ID, TARGET, DemoData, write_tables
from site_agent.data.aligned_ids import SharedIds
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import Prepared, prepare
from site_agent.data.tables import read_table
from site_agent.models.file import load_model

CLOSE_ENOUGH = 1e-6
# Of a site's own report.
ADVICE = {"local": "local model", "joined": "joined model", "score": "score together"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("demo-out"),
        help="folder for report.json and two pictures",
    )
    parser.add_argument("--seed", type=int, default=0, help="another draw of patients")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, sys.path)
    )  # an uninstalled checkout works too
    try:
        with tempfile.TemporaryDirectory(prefix="coreg-demo-") as folder:
            good = _demonstrate(Path(folder), options.seed, options.output)
    except DemoFailed as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    if not good:
        print("demo: not converged, or not the closed form", file=sys.stderr)
    return 0 if good else 1


def _demonstrate(work: Path, seed: int, output: Path) -> bool:
    tables = work / "tables"
    tables.mkdir()
    data = write_tables(tables, seed)
    sites = sorted(data.tables)
    spent = dict[str, float]()
    # (1) coRLSR where its assumption holds
    working = WorkLine()
    with working.during("20 draws of labels at two hospitals, in memory"):
        hospitals = draws.hospitals()
    shown.hospitals(hospitals)
    # (2) coRLSR on the patients, by processes
    shown.commands(sites)
    create(work, sites)
    for study, solver in shown.SOLVERS.items():
        with working.during(f"coRLSR by {solver}: coordinator and {len(sites)} agents train"):
            spent[study] = _train(work, data, study)
    runs = {study: _stored(work, study) for study in shown.SOLVERS}
    pin_threads(1)
    with working.during("the centralised closed form, to compare with"):
        off = {study: distance_from_closed_form(work, data, study) for study in shown.SOLVERS}
    shown.convergence(runs, off)
    # (3) the additive method on the same patients, by processes
    print("\nThe additive method on the same patients. Then the sites score the held-out ones …")
    with working.during(f"additive training: coordinator and {len(sites)} agents"):
        spent["additive"] = _train(work, data, "additive")
    with working.during("scoring together"):
        spent["scoring"] = _score(work, data)
    # (4) the errors of this draw, and means of others
    with working.during("20 draws of labels on the patients, in memory"):
        errors = judged(work, data)
        pooled = _pooled(data)
        means = _means_of_draws(tables)
    shown.errors(errors, means, pooled)
    shown.advice({site: ADVICE[_recommended(work, site)] for site in sites})
    shown.ledgers(work, sites)
    # (5) the files
    report = {
        "sites": errors,
        "means": means,
        "hospitals": {site: asdict(of_site) for site, of_site in hospitals.items()},
        "pooled": pooled,
        "seconds": {name: round(seconds, 3) for name, seconds in spent.items()},
        **{study: _of_run(run, off[study]) for study, run in runs.items()},
    }
    (output / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _draw_convergence(runs, output / "convergence.svg")
    _draw_errors(errors, pooled, output / "errors.svg")
    print(f"\n{', '.join(f'{name} {seconds:.1f} s' for name, seconds in spent.items())}")
    print(
        f"written: {output}/errors.svg, {output}/convergence.svg, {output}/report.json. Next:"
        " docs/tutorials/quickstart.md"
    )
    converged = all(run["stop"] == "CONVERGED" for run in runs.values())
    return converged and max(off.values()) <= CLOSE_ENOUGH


# --- runs -----------------------------------------------------------------------------------------


def _train(work: Path, data: DemoData, study: str) -> float:
    """Train to SITE/models/STUDY/RUN; the seconds."""
    agents = {s: ["--data", table] for s, table in data.tables.items()}
    return together(work, study, ["run", "fed", "--study", data.studies[study]], agents)


def _score(work: Path, data: DemoData) -> float:
    """Score the held-out patients together; the seconds."""
    command = ["score", "--id", ID, "--data"]
    agents = {site: [*command, table] for site, table in data.held_out.items()}
    return together(work, "scoring", ["run", "fed", "--study", data.studies["scoring"]], agents)


def _of_run(run: dict[str, Any], off: float) -> dict[str, Any]:
    return {"stop": run["stop"], "rounds": run["rounds"][-1]["round"], "off": off}


def _file(work: Path, site: str, study: str, name: str) -> Path:
    [path] = (work / site / "models" / study).glob(f"*/{name}")
    return path


def _stored(work: Path, study: str) -> dict[str, Any]:
    """The run of a study as `coreg-coordinator show --json` prints it."""
    runs = map(
        json.loads, run("coordinator.cli.app", "runs", "fed", "--json", cwd=work).splitlines()
    )
    own = next(
        each["run"]
        for each in runs
        if each["plan"]["study"] == study and "-ids-" not in each["run"]
    )
    shown: dict[str, Any] = json.loads(
        run("coordinator.cli.app", "show", own, "--federation", "fed", "--json", cwd=work)
    )
    return shown


def distance_from_closed_form(work: Path, data: DemoData, study: str) -> float:
    """The largest difference of a prediction from coRLSR's closed form on all tables in one place,
    over all λ.

    In units of the labels' standard deviation.
    """
    sites = sorted(data.tables)
    prepared = [_prepared(work, data, site) for site in sites]
    tables = [read_table(data.held_out[site]) for site in sites]
    problem = Problem(
        {site: own.data for site, own in zip(sites, prepared, strict=True)},
        tuple(
            own.preprocessing.transform(table) for own, table in zip(prepared, tables, strict=True)
        ),
        data.held_out_y,
    )
    exact = closed_form(problem, plan_for(problem, Agreement(coupling=COUPLINGS)))
    pairs = []
    for coupling, solutions in zip(COUPLINGS, exact.solutions, strict=True):
        for v, site in enumerate(sites):
            model = load_model(_file(work, site, study, f"model-coupling-{coupling:g}.coreg"))
            mean = float(prepared[v].data.y.mean())
            shared = prepared[v].table.unlabelled
            pairs.append((model.predict(shared), solutions[v].prediction + mean))
            held_out = solutions[v].predict(problem.held_out[v])
            pairs.append((model.predict(tables[v]), held_out + mean))
    return largest_distance(pairs, label_deviation(problem))


def _prepared(work: Path, data: DemoData, site: str) -> Prepared:
    inputs = Inputs(table=data.tables[site], target=TARGET, id=ID)
    return prepare(inputs, b"", _aligned(work / site))


def _aligned(site: Path) -> SharedIds:
    """The ids that the first training aligned."""
    first = min(
        (site / "identity" / "aligned").glob("*.json"), key=lambda path: path.stat().st_mtime
    )
    plain = json.loads(first.read_text(encoding="utf-8"))
    return SharedIds(plain["rule"], tuple(plain["ids"]))


def _recommended(work: Path, site: str) -> str:
    """The method that the site's own report recommends."""
    findings = load_model(_file(work, site, "additive", "model.coreg")).findings
    return (findings and findings.recommended) or "local"


def _means_of_draws(folder: Path) -> dict[str, dict[str, float]]:
    """Each site's mean errors over draws of labels: of coRLSR in memory, of the additive method as
    recorded.
    """
    _, additive = draws.recorded()
    corlsr = draws.patients(folder)
    return {
        site: {"ridge": corlsr[site].ridge, "corlsr": corlsr[site].corlsr}
        | {key: additive[site][key] for key in ("local", "joined", "score")}
        for site in sorted(corlsr)
    }


def judged(work: Path, data: DemoData) -> dict[str, dict[str, float]]:
    """Each site's errors on the held-out patients."""
    found = {}
    for site in sorted(data.tables):
        table = read_table(data.held_out[site])
        y = data.held_out_y
        files = {"ridge": ("algorithm-1", "model-coupling-0"), "corlsr": ("algorithm-1", "model")}
        files |= {"local": ("additive", "local"), "joined": ("additive", "model")}
        found[site] = {}
        for key, (study, name) in files.items():
            found[site][key] = rmse(
                load_model(_file(work, site, study, f"{name}.coreg")).predict(table), y
            )
        scores = read_table(_file(work, site, "scoring", "scores.csv"))
        by_id = dict(zip(scores.ids(ID), scores.numbers("score").tolist(), strict=True))
        found[site]["score"] = rmse(np.array([by_id[i] for i in table.ids(ID)]), y)
    return found


def _pooled(data: DemoData) -> float:
    """The error of a local model of all rows and columns in one place."""
    model = AdditiveRegressor(views=[slice(None)]).fit(data.everything.X, data.everything.y)
    predicted = model.predict_local(0, data.everything.held_out)
    assert predicted is not None
    return rmse(predicted, data.held_out_y)


# --- pictures -------------------------------------------------------------------------------------


def _draw_convergence(stored: Mapping[str, dict[str, Any]], path: Path) -> None:
    series = []
    for study, name in shown.SOLVERS.items():
        known = {at: gap for at, gap in shown.gaps(stored[study]).items() if gap > 0}
        series.append(Series(name, tuple(map(float, known)), tuple(known.values())))
    plot = Plot(
        "convergence",
        "coRLSR: upper bound of Q − Q*",
        "sweep or round",
        "gap",
        tuple(series),
        log_y=True,
    )
    path.write_text(svg.draw(plot), encoding="utf-8")


def _draw_errors(errors: Mapping[str, Mapping[str, float]], pooled: float, path: Path) -> None:
    """A row for each model, grouped by site."""
    left = 150
    width = 330
    row = 22
    every = [value for found in errors.values() for value in found.values()]
    at = svg.scale(0.95 * min(*every, pooled), 1.02 * max(every), left, left + width)
    body = [
        svg.text(
            10, 20, "error on 80 held-out patients", anchor="start", more=' font-weight="bold"'
        )
    ]
    y = 34
    for site, found in errors.items():
        y += row + 8
        body.append(svg.text(10, y, site, anchor="start", more=' font-weight="bold"'))
        for colour, (key, name) in zip(
            (*svg.COLOURS, *svg.COLOURS), shown.COLUMNS.items(), strict=False
        ):
            y += row
            body += [
                svg.text(left - 10, y + 4, name, anchor="end"),
                svg.line(
                    at(found[shown.AGAINST.get(key, key)]),
                    y,
                    at(found[key]),
                    y,
                    colour,
                    ' stroke-width="2"',
                ),
                svg.circle(at(found[key]), y, 5, colour),
                svg.text(left + width + 10, y + 4, shown.cell(found, key), anchor="start"),
            ]
    body.append(
        svg.text(
            10, y + 2 * row, f"all data in one place, for reference: {pooled:.1f}", anchor="start"
        )
    )
    path.write_text(
        svg.document(left + width + 120, y + 3 * row, body, font_size=13), encoding="utf-8"
    )
