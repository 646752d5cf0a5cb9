"""Tables of README and docs/research/benefit.md, from the benefit study's JSON files in benchmarks/results/benefit."""

import json
import re
from statistics import stdev

from render import ROOT, row, table, text

from benchmarks.benefit.study import JUDGED_ON

RESULTS = ROOT / "benchmarks" / "results" / "benefit"
METHODS = {
    "additive": "joined model",
    "together-private": "scored together",
    "together-own-pick": "checked scores: all sites know the labelled rows, and a site uses the scores only where its own "
    "cross-validation favours them",
    "distilled": "limit of joined models: the pooled model, learnt by each site's own columns",
    "best-site": "the best single site's local model, if all could use it",
    "pooled": "pooled data, as a reference",
}
DIFFERENCES = {
    "offset50": "offsets with a deviation of 0.5",
    "offset-1-50": "offsets with a deviation of 1",
    "units50": "units that differ by a factor of 2",
    "flipped50": "the third site's sign flipped",
}
SHARED_SETS = {
    "m50": "50 rows",
    "m250": "250 rows",
    "n50": "1,000 rows, or 45 % of a shorter set",
    "m5000": "5,000 rows",
    "mislinked10": "10 % of ids belong to other individuals",
    "mislinked30": "30 %",
    "leaning50": "leans to one end of a column",
    "noise50": "10 columns of noise at each site",
}
YES_NO = ("local model", "joined model", "scored together", "checked scores", "pooled")


def load(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def benefit() -> dict[str, str]:
    """The generated parts of docs/research/benefit.md."""
    run = load("benefit")
    return {
        "answer": answer(run),
        "yes-no": yes_no(run),
        "differences": by_regime(run, "difference", DIFFERENCES),
        "shared sets": by_regime(run, "shared set", SHARED_SETS),
    }


def by_regime(run: dict, heading: str, regimes: dict[str, str]) -> str:
    """Joined models and checked scores in some regimes, and the number of sets if it differs."""
    found = run["tables"]["Map of regimes"]
    columns = {"additive": "joined models (harmed)", "together-own-pick": "checked scores (harmed)", "sets": "sets"}
    rows = {r[0]: r for r in found["rows"]}
    at = [found["header"].index(name) for name in columns]
    if len({rows[name][at[-1]] for name in regimes}) == 1:
        del columns["sets"], at[-1]
    return table(
        f"| {heading} | {' | '.join(columns.values())} |",
        (row(words, *(rows[name][k] for k in at)) for name, words in regimes.items()),
    )


def yes_no(run: dict) -> str:
    """The area under the ROC curve by regime and method."""
    areas = {(r[0], r[1]): r[2] for r in run["tables"]["Yes/no targets"]["rows"]}
    regimes = dict.fromkeys(regime for regime, _ in areas)
    return table(
        f"| AUC | {' | '.join(YES_NO)} |",
        (row(regime, *(text(areas[regime, method]) for method in YES_NO)) for regime in regimes),
    )


def answer(run: dict) -> str:
    """The figures of README, the scores that a site uses only by its own choice, and the peers; ± standard errors over sets."""
    [own, together] = [each for name, each in run["tables"].items() if "against" in name]
    figures = {method: rest for each in (own, together) for method, *rest in each["rows"]}
    by_set = [changes for name, changes in run["headline"]["sets"].items() if name in JUDGED_ON]
    error = {method: stdev(each[method] for each in by_set) / len(by_set) ** 0.5 for method in METHODS}
    rows = (
        row(words, f"{figures[method][0]} ± {100 * error[method]:.1f}", *figures[method][1:3])
        for method, words in METHODS.items()
    )
    return table("| | mean change of the error (± standard error over the sets) | median | sites harmed |", rows)


def by_labels() -> str:
    """README's table: the gains by the number of labels, of the sets on which no choice was made."""
    regimes = load("benefit")["tables"]["Map of regimes"]
    at = [regimes["header"].index(name) for name in ("additive", "together-private", "together-own-pick")]
    rows = (row(r[0][1:], *(r[k] for k in at)) for r in regimes["rows"] if re.fullmatch(r"n\d{2,3}", r[0]))
    return table("| labels at each site | joined model | scored together | checked scores |", rows)
