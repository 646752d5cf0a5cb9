"""Tables of docs/research/benefit.md and README, from the benefit study's JSON files in
benchmarks/results/benefit.
"""

import json

from render import ROOT, row, table

RESULTS = ROOT / "benchmarks" / "results" / "benefit"
SITES = {
    "n10": "3 sites of 10 labels", "n20": "3 of 20", "n50": "3 of 50", "n100": "3 of 100",
    "n200": "3 of 200",
    "n1000": "3 of 1,000", "M2": "2 of 50", "M5": "5 of 50", "M8": "8 of 50",
    "rich": "200 labels beside two of 10", "one": "100 labels beside two of none",
    "one200": "200 beside two of none", "one1000": "1,000 beside two of none",
    "core50": "3 of 50, a third of the columns everywhere",
    "same50": "3 of 50, the same labelled rows",
    "overlap100": "3 of 100, and 10 of another site's",
    "yes-no100": "3 of 100, yes/no", "rare200": "3 of 200, 5 % of them yes",
}  # fmt: skip
CHANGES = {
    "score": "score", "joined": "joined", "default score": "score, default rules",
    "default joined": "joined, default rules",
    "score, one missing": "score, one site missing", "private score": "score, private rows",
    "pooled": "pooled",
}  # fmt: skip
RIVALS = {
    "six": "average of six learners", "joined": "joined", "score": "score",
    "cooperative": "cooperative", "assisted": "assisted",
    "one holder": "one holder", "pooled trees": "pooled, trees",
    "pooled boosting": "pooled, boosting",
}  # fmt: skip
AGAINST = (
    "n10", "n20", "n50", "n100", "n200", "n1000", "M8", "one", "one200", "one1000",
)  # fmt: skip


def load() -> dict:
    return json.loads((RESULTS / "benefit.json").read_text(encoding="utf-8"))


def benefit() -> dict[str, str]:
    """The generated parts of docs/research/benefit.md."""
    run = load()
    against = {name: SITES[name] for name in AGAINST}
    return {
        "answer": by_regime(run["changes"], "labels", SITES, CHANGES),
        "rivals": by_regime(run["rivals"], "labels", against, RIVALS),
        "yes-no": found(run["yes-no"]),
    }


def by_regime(
    rows: list[list[str]], heading: str, regimes: dict[str, str], columns: dict[str, str]
) -> str:
    """Changes of the error in some regimes, with the share of harmed sites in brackets."""
    names, *rows = rows
    at = [names.index(name) for name in columns]
    known = {each[0]: each for each in rows}
    shown = (
        row(words, *(known[name][k] or "–" for k in at))
        for name, words in regimes.items()
        if name in known
    )
    return table(f"| {heading} | {' | '.join(columns.values())} |", shown)


def found(rows: list[list[str]]) -> str:
    """A table as the study has it."""
    heading, *rest = rows
    return table(row(*heading), (row(*each) for each in rest))


def by_labels() -> str:
    """README's table: what a federation's default rules reach, by the number of labels."""
    columns = {
        "default score": "scored together",
        "default joined": "joined model",
        "six": "average of six learners",
    }
    names = {name: SITES[name] for name in ("n50", "n200", "M8", "yes-no100")} | {
        "n50": "3 sites of 50 labels"
    }
    run = load()
    six = {row[0]: row[run["rivals"][0].index("six")] for row in run["rivals"]}
    rows = [[*run["changes"][0], "six"], *([*row, six[row[0]]] for row in run["changes"][1:])]
    return by_regime(with_errors(rows, run["errors"]), "labels", names, columns)


def with_errors(rows: list[list[str]], errors: list[list[str]]) -> list[list[str]]:
    """Each change with its standard error over the sets: "-29.4 ± 5.1 (2)"."""
    heading, *changes = rows
    columns = errors[0][1:]
    error_of = {row[0]: dict(zip(columns, row[1:], strict=True)) for row in errors[1:]}
    out = [heading]
    for regime, *cells in changes:
        of_regime = error_of[regime]
        shown = [regime]
        for column, cell in zip(heading[1:], cells, strict=True):
            error = of_regime.get(column, "")
            shown.append(cell.replace(" (", f" ± {error} (") if error else cell)
        out.append(shown)
    return out
