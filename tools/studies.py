"""The study pages, and the forecast calibration of the product, from the JSON files that coreg-sim wrote.

Nothing is computed here: each number comes from a JSON file, which also records the command and versions.
"""

import json
import re
import shutil
from pathlib import Path
from statistics import stdev

from render import ROOT, findings, paragraph, plot_links, row, software, table, tables

from coreg_sim.benefit.partition import REGIMES
from coreg_sim.benefit.study import GROUPS
from coreg_sim.papers.runner import NAMES
from coreg_wire.terminal.svg import Plot, Series, draw

EXPERIMENTS, BENEFIT = ROOT / "docs" / "research" / "experiments", ROOT / "docs" / "research" / "benefit"

OWN_PLACE = {"yes-no": "Yes/no targets", "warnings": "Warnings about labels"}  # tables that have a section of the page


def load(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def experiment(run: dict) -> str:
    """The page of an experiment."""
    absent = f" Missing sets: {', '.join(run['absent'])}." if run["absent"] else ""
    report, plots = run["report"], plot_links(run["report"])
    lines = [
        f"# {run['title']}", "", f"Source: {run['source']}.", "",
        *findings(report), *(["", *plots] if plots else []), *tables(report, "**{}**"), "",
        paragraph(f"{run['jobs']} jobs, {software(run)}{absent}"), "",
        paragraph(f"`coreg-sim paper {run['experiment']}` computed this page, and `make docs` wrote it: see "
                  "[the papers' experiments](../experiments.md)."), "",
    ]  # fmt: skip
    return "\n".join(lines)


DIFFERENCES = {
    "offset50": "offsets with a deviation of 0.5",
    "offset-1-50": "offsets with a deviation of 1",
    "units50": "units that differ by a factor of 2",
    "flipped50": "the third site's sign flipped",
}
SHARED_SETS = {
    "m50": "50 rows",
    "m100": "100 rows",
    "m250": "250 rows",
    "m500": "500 rows",
    "n50": "1,000 rows, or 45 % of a shorter set",
    "m2000": "2,000 rows",
    "m5000": "5,000 rows",
    "mislinked1": "1 % of ids belong to other individuals",
    "mislinked5": "5 %",
    "mislinked10": "10 %",
    "mislinked30": "30 %",
    "leaning50": "leans to one end of a column",
    "noise50": "10 columns of noise at each site",
}


def benefit() -> dict[str, str]:
    """The generated parts of docs/research/benefit.md."""
    run = load(BENEFIT / "benefit.json")
    return {
        "answer": answer(run),
        "strict": gains(load(BENEFIT / "strict.json"), {"labels": "labels a site", "form": "trained with"}),
        "yes-no": apart(run, "yes-no"),
        "differences": by_regime(run, "difference", DIFFERENCES),
        "shared sets": by_regime(run, "shared set", SHARED_SETS),
    }


def by_regime(run: dict, heading: str, regimes: dict[str, str]) -> str:
    """Joined models and checked scores in some regimes, and the number of sets if it differs."""
    [found] = [each for each in run["report"]["tables"] if each["title"] == "Map of regimes"]
    columns = {"additive": "joined models (harmed)", "together-own-pick": "checked scores (harmed)", "sets": "sets"}
    rows = {r[0]: r for r in found["rows"]}
    at = [found["header"].index(name) for name in columns]
    if len({rows[name][at[-1]] for name in regimes}) == 1:
        del columns["sets"], at[-1]
    return table(
        f"| {heading} | {' | '.join(columns.values())} |",
        (row(words, *(rows[name][k] for k in at)) for name, words in regimes.items()),
    )


def apart(run: dict, name: str) -> str:
    """A table that has a section of a page, without its heading."""
    [found] = [each for each in run["report"]["tables"] if each["title"] == OWN_PLACE[name]]
    return "\n".join(tables({"tables": [found]}, "")[3:])


def benefit_tables() -> dict[str, str]:
    """The generated parts of docs/research/benefit-tables.md."""
    run = load(BENEFIT / "benefit.json")
    study = run["study"]
    groups = [name for name, sets in GROUPS.items() if set(sets) <= set(study["sets"])]
    sets = [*groups, *(name for name in study["sets"] if not any(name in GROUPS[group] for group in groups))]
    others = [each for each in run["report"]["tables"] if each["title"] not in OWN_PLACE.values()]
    rows = (row(name, REGIMES[name].about, REGIMES[name].shared) for name in study["regimes"] if name in REGIMES)
    return {
        "findings": "\n".join(findings(run["report"])),
        "command": f"    coreg-sim benefit --data DIR --sets {','.join(sets)} --draws {study['draws']} --out OUT",
        "results": "\n".join(tables({"tables": others}, "### {}")[1:]),
        "regimes": table("| regime | partition | shared rows |", rows),
        "warnings": apart(run, "warnings"),
        "effort": paragraph(f"{run['federations']} federations, {software(run)}"),
    }


def answer(run: dict) -> str:
    """The figures of README, the scores that a site uses only by its own choice, and the peers; ± standard errors over sets."""
    named = {
        "additive": "joined model",
        "together-private": "scored together",
        "together-own-pick": "checked scores: all sites know the labelled rows, and a site uses the scores only where its own "
        "cross-validation favours them",
        "distilled": "limit of joined models: the pooled model, learnt by each site's own columns",
        "best-site": "the best single site's local model, if all could use it",
        "pooled": "pooled data, as a reference",
    }
    figures = {method: rest for each in run["report"]["tables"][:2] for method, *rest in each["rows"]}
    by_set = [changes for name, changes in run["headline"]["sets"].items() if name in GROUPS["judged-on"]]
    error = {method: stdev(each[method] for each in by_set) / len(by_set) ** 0.5 for method in named}
    rows = (
        row(words, f"{figures[method][0]} ± {100 * error[method]:.1f}", *figures[method][1:3])
        for method, words in named.items()
    )
    return table("| | mean change of the error (± standard error over the sets) | median | sites harmed |", rows)


def gains(run: dict, columns: dict[str, str]) -> str:
    """A table of both changes by the values of these columns; a number below 1 is a share."""
    rows = (
        row(
            *(f"{100 * r[key]:.0f} %" if isinstance(r[key], float) else r[key] for key in columns),
            *(change(r, key) for key in ("own", "together")),
            r["sets"],
        )
        for r in run["table"]
    )
    return table(f"| {' | '.join(columns.values())} | joined model | scored together | sets |", rows)


def change(r: dict, key: str) -> str:
    """A mean change, and the share of sites harmed if it is known."""
    harmed = f" ({100 * r[f'{key}_harmed']:.0f} %)" if f"{key}_harmed" in r else ""
    return f"{100 * r[key]:+.1f} %{harmed}"


def by_labels() -> str:
    """README's table: the gains by the number of labels, of the sets on which no choice was made."""
    [regimes] = [t for t in load(BENEFIT / "benefit.json")["report"]["tables"] if t["title"] == "Map of regimes"]
    at = [regimes["header"].index(name) for name in ("additive", "together-private", "together-own-pick")]
    rows = (row(r[0][1:], *(r[k] for k in at)) for r in regimes["rows"] if re.fullmatch(r"n\d{2,3}", r[0]))
    return table("| labels at each site | joined model | scored together | checked scores |", rows)


def calibration(run: dict) -> str:
    """Source of the module that holds past forecast results. The product imports it and reads no file."""
    lines = [
        '"""Results of past forecasts in the benefit study: generated by `make docs` from docs/research/benefit/benefit.json."""',
        "",
        "# fmt: off",
        "from coreg_core.evaluation.track_record import Band, Experience",
    ]
    for name, found in run["calibration"].items():
        if name != "agreement":  # the product does not use it
            bands = [f"    Band({', '.join(map(repr, band))})," for band in found["bands"]]
            lines += ["", f"{name.upper()} = Experience((", *bands, "))"]
    return "\n".join([*lines, ""])


def plots(folder: Path, runs: list[dict]) -> dict[Path, str]:
    """The plots of these runs. A plot that no run names must be absent."""
    files = dict.fromkeys(sorted(folder.glob("*.svg")), "")
    for run in runs:
        for plot in run["report"]["plots"]:
            series = tuple(
                Series(**{key: v if isinstance(v, str) else tuple(v) for key, v in s.items()}) for s in plot["series"]
            )
            files[folder / f"{plot['name']}.svg"] = draw(Plot(**plot | {"series": series}))
    return files


def files() -> dict[Path, str]:
    """The pages of the experiments, the plots, and the calibration module."""
    study = load(BENEFIT / "benefit.json")
    product = ROOT / "coreg_core" / "evaluation" / "calibration.py"
    runs = [load(path) for path in sorted(EXPERIMENTS.glob("*.json"))]
    pages = {EXPERIMENTS / f"{run['experiment']}.md": experiment(run) for run in runs}
    return {product: calibration(study), **pages, **plots(EXPERIMENTS, runs), **plots(BENEFIT, [study])}


def collect(source: Path) -> None:
    """Copy the JSON files of full runs from a study folder."""
    for name in ("benefit", *NAMES):
        if (path := source / f"{name}.json").exists():
            shutil.copyfile(path, (BENEFIT if name == "benefit" else EXPERIMENTS) / path.name)
