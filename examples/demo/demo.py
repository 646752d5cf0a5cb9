"""`make demo`: three sites train together over mutual TLS on real patients' records, and measure
the gain of joining.

First the paper's system: Algorithm 1 (block coordinate descent) with a path of λ, then conjugate
gradients, beside the centralised closed form. Then the additive method on the same patients. The
processes are those that operators start, by the same commands. The exit code is 0 only if coRLSR
converged and all its predictions are within 1e-6 standard deviations of the labels of the closed
form. No parameter is tuned for this draw: if joining makes a site worse, the table shows it.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from coreg_core.estimators import AdditiveRegressor, CoRLSR
from coreg_core.threads import pin_threads
from coreg_sim.simulate import rmse
from coreg_sim.tables import COUPLINGS, ID, TARGET, DemoData, write_tables
from coreg_wire.terminal.command_line import human_bytes
from examples.demo import svg
from examples.demo.processes import DemoFailed, create, run, together
from examples.demo.svg import Plot, Series
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import Prepared, SharedIds, prepare
from site_agent.data.tables import read_table
from site_agent.ledger import read_ledger
from site_agent.models.file import load_model

CLOSE_ENOUGH = 1e-6
SOLVERS = {"algorithm-1": "Algorithm 1", "conjugate-gradients": "conjugate gradients"}
COLUMNS = {
    "mean": "mean of labels", "ridge": "λ = 0", "corlsr": "coRLSR", "local": "alone",
    "joined": "joined model", "score": "score",
}  # fmt: skip
# Of a site's own report.
ADVICE = {"local": "stay alone", "joined": "joined model", "score": "score together"}
AGAINST = {"corlsr": "ridge", "joined": "local", "score": "local"}  # the same learner, alone


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
    say = print
    tables = work / "tables"
    tables.mkdir()
    data = write_tables(tables, seed)
    spent = dict[str, float]()
    sites = sorted(data.tables)
    say(
        "A clinic and two laboratories know 362 patients. Each has other columns of them, and the"
        " labels of 60."
    )
    say(
        f"\n$ coreg-coordinator init fed {' '.join(f'--site {site}' for site in sites)}\n$"
        " coreg-coordinator run fed"
    )
    say(
        "$ coreg-agent join < invitation; coreg-agent --data local.csv    # at each site; then all"
        " sites align their ids"
    )
    create(work, sites)
    for study in SOLVERS:
        spent[study] = _train(work, data, study)
    stored = {study: _stored(work, study) for study in SOLVERS}
    pin_threads(1)
    off = {study: distance_from_closed_form(work, data, study) for study in SOLVERS}
    say("\nThe additive method on the same patients, then the held-out patients scored together …")
    spent["additive"] = _train(work, data, "additive")
    score = ["score", "--id", ID, "--data"]
    scoring = ["run", "fed", "--study", data.studies["scoring"]]
    spent["scoring"] = together(
        work, "scoring", scoring, {s: [*score, data.held_out[s]] for s in sites}
    )
    errors = judged(work, data)
    pooled = _pooled(data)
    _show_errors(errors, pooled, {site: _advice(work, site) for site in sites})
    _show_convergence(stored, off)
    _show_ledgers(work, sites)
    report = {
        "sites": errors,
        "pooled": pooled,
        "seconds": {name: round(seconds, 3) for name, seconds in spent.items()},
        **{
            study: {
                "stop": found["stop"],
                "rounds": found["rounds"][-1]["round"],
                "off": off[study],
            }
            for study, found in stored.items()
        },
    }
    (output / "report.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _draw_convergence(stored, output / "convergence.svg")
    _draw_errors(errors, pooled, output / "errors.svg")
    say(f"\n{', '.join(f'{name} {seconds:.1f} s' for name, seconds in spent.items())}")
    say(
        f"written: {output}/errors.svg, {output}/convergence.svg, {output}/report.json. Next:"
        " docs/tutorials/quickstart.md"
    )
    return (
        all(found["stop"] == "CONVERGED" for found in stored.values())
        and max(off.values()) <= CLOSE_ENOUGH
    )


# --- runs -----------------------------------------------------------------------------------------


def _train(work: Path, data: DemoData, study: str) -> float:
    """Train to SITE/models/STUDY/RUN; the seconds."""
    agents = {s: ["--data", table] for s, table in data.tables.items()}
    return together(work, study, ["run", "fed", "--study", data.studies[study]], agents)


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
    held_out = np.hstack(
        [own.preprocessing.transform(table) for own, table in zip(prepared, tables, strict=True)]
    )
    means = [float(own.data.y.mean()) for own in prepared]
    unit = float(np.std(np.concatenate([own.data.y for own in prepared])))
    worst = 0.0
    for coupling in COUPLINGS:
        central = _central(prepared, coupling)
        exact = central.predict_views(held_out)
        for v, site in enumerate(sites):
            model = load_model(_file(work, site, study, f"model-coupling-{coupling:g}.coreg"))
            on_shared = central.predictions_unlabelled_[v]
            for rows, values in (
                (tables[v], exact[v]),
                (prepared[v].table.unlabelled, on_shared),
            ):
                difference = np.abs(model.predict(rows) - (values + means[v])).max()
                worst = max(worst, float(difference) / unit)
    return worst


def _prepared(work: Path, data: DemoData, site: str) -> Prepared:
    inputs = Inputs(table=data.tables[site], target=TARGET, id=ID)
    return prepare(inputs, b"", _aligned(work / site))


def _central(prepared: Sequence[Prepared], coupling: float) -> CoRLSR:
    """coRLSR on one table: the labelled rows of each site, with zeros in the columns of the others,
    then the shared rows.
    """
    labelled = [own.data.X for own in prepared]
    shared = np.hstack([own.data.Z for own in prepared])
    labels = [own.data.y - float(own.data.y.mean()) for own in prepared]
    ends = np.cumsum([0, *(X.shape[1] for X in labelled)]).tolist()
    owner = np.repeat(np.arange(len(prepared) + 1), [*map(len, labelled), len(shared)])
    estimator = CoRLSR(
        preset="paper", views=[slice(*columns) for columns in pairwise(ends)], coupling=coupling
    )
    return estimator.fit(
        np.concatenate([block_diag(*labelled), shared]),
        np.concatenate([*labels, np.full(len(shared), np.nan)]),
        label_mask=owner[:, None] == np.arange(len(prepared)),
    )


def _aligned(site: Path) -> SharedIds:
    """The ids that the first training aligned."""
    first = min(
        (site / "identity" / "aligned").glob("*.json"), key=lambda path: path.stat().st_mtime
    )
    plain = json.loads(first.read_text(encoding="utf-8"))
    return SharedIds(plain["rule"], tuple(plain["ids"]))


def _advice(work: Path, site: str) -> str:
    """The method that the site's own report recommends."""
    found = load_model(_file(work, site, "additive", "model.coreg")).found or {}
    return ADVICE[found.get("recommended", "local")]


def judged(work: Path, data: DemoData) -> dict[str, dict[str, float]]:
    """Each site's errors on the held-out patients."""
    found = {}
    for site in sorted(data.tables):
        table, y = read_table(data.held_out[site]), data.held_out_y
        labels = read_table(data.tables[site]).numbers(TARGET)
        files = {"ridge": ("algorithm-1", "model-coupling-0"), "corlsr": ("algorithm-1", "model")}
        files |= {"local": ("additive", "local"), "joined": ("additive", "model")}
        found[site] = {"mean": rmse(np.full(len(y), np.nanmean(labels)), y)}
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
    model = (
        AdditiveRegressor(views=[slice(None)])
        .fit(data.everything.X, data.everything.y)
        .trained_.sites[0]
        .local
    )
    assert model is not None
    return rmse(model.predict(data.everything.held_out), data.held_out_y)


# --- what is shown --------------------------------------------------------------------------------


def _gaps(found: dict[str, Any]) -> dict[int, float]:
    """The gap after each round, the largest of all λ."""
    return {r["round"]: max(r["gap"]) for r in found["rounds"] if r["gap"] and max(r["gap"]) >= 0}


def _show_convergence(stored: Mapping[str, dict[str, Any]], off: Mapping[str, float]) -> None:
    print(
        f"\ncoRLSR (Brefeld et al., ICML 2006), λ = {', '.join(f'{c:g}' for c in COUPLINGS)}: Q −"
        " Q* is at most"
    )
    print(f"{'sweep or round':<16}" + "".join(f"{name:>22}" for name in SOLVERS.values()))
    gaps = [_gaps(stored[study]) for study in SOLVERS]
    last = max(max(each, default=0) for each in gaps)
    for at in sorted({1, 2, 5, 10, last}):
        cells = [f"{each[at]:.0e}" if at in each else "" for each in gaps]
        if any(cells):
            print(f"{at:<16}" + "".join(f"{cell:>22}" for cell in cells))
    for study, name in SOLVERS.items():
        each = np.median([r["bytes_sent"] + r["bytes_received"] for r in stored[study]["rounds"]])
        print(
            f"{name}: {stored[study]['stop'].lower()}; {human_bytes(float(each))} a step, all"
            f" sites; largest difference from the centralised closed form {off[study]:.0e} standard"
            " deviations"
        )


def _show_errors(
    errors: Mapping[str, Mapping[str, float]], pooled: float, advised: Mapping[str, str]
) -> None:
    better = sum(found["score"] < found["local"] for found in errors.values())
    print(
        f"\nScored together, {better} of {len(errors)} sites predict 80 held-out patients better"
        " than alone."
    )
    print(
        "root mean square error (change against the same learner alone), and what each site's own"
        " report advises"
    )
    print(f"{'':<14}" + "".join(f"{name:>16}" for name in (*COLUMNS.values(), "advice")))
    for site, found in errors.items():
        print(
            f"{site:<14}"
            + "".join(f"{_cell(found, key):>16}" for key in COLUMNS)
            + f"{advised[site]:>16}"
        )
    print(f"All rows and columns in one place, for reference: {pooled:.1f}")
    print(
        "One draw of labels and of noise: repeated runs differ by one to two points, and advice"
        " from 60 own labels can miss the better model. README.md has means."
    )
    print(
        "coRLSR: each site keeps the λ that its own labels choose. λ = 0: kernel ridge alone;"
        " alone: mixed with a forest."
    )


def _show_ledgers(work: Path, sites: Sequence[str]) -> None:
    print("\nwhat left each site, by its ledger (docs/concepts/privacy.md)")
    for site in sites:
        ledger = read_ledger(work / site / "identity" / "ledger.jsonl")
        sent = [entry for entry in ledger if entry["kind"] != "Countersigned"]
        sealed = sum(entry.get("sent") == "sealed" for entry in sent)
        print(
            f"  {site:<12}  {len(sent)} messages, {sealed} of them with encrypted numbers; no row,"
            " no label, no id"
        )


def _cell(errors: Mapping[str, float], key: str) -> str:
    change = f" ({100 * (errors[key] / errors[AGAINST[key]] - 1):+.1f} %)" if key in AGAINST else ""
    return f"{errors[key]:.1f}{change}"


def _draw_convergence(stored: Mapping[str, dict[str, Any]], path: Path) -> None:
    series = []
    for study, name in SOLVERS.items():
        known = {at: gap for at, gap in _gaps(stored[study]).items() if gap > 0}
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
    left, width, row = 150, 330, 22
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
        for colour, (key, name) in zip((*svg.COLOURS, *svg.COLOURS), COLUMNS.items(), strict=False):
            y += row
            body += [
                svg.text(left - 10, y + 4, name, anchor="end"),
                svg.line(
                    at(found[AGAINST.get(key, key)]),
                    y,
                    at(found[key]),
                    y,
                    colour,
                    ' stroke-width="2"',
                ),
                svg.circle(at(found[key]), y, 5, colour),
                svg.text(left + width + 10, y + 4, _cell(found, key), anchor="start"),
            ]
    body.append(
        svg.text(
            10, y + 2 * row, f"all data in one place, for reference: {pooled:.1f}", anchor="start"
        )
    )
    path.write_text(
        svg.document(left + width + 120, y + 3 * row, body, font_size=13), encoding="utf-8"
    )
