"""Tables of docs/research/benefit.md and README, from the benefit study's JSON files in benchmarks/results/benefit."""

import json

from render import ROOT, row, table

RESULTS = ROOT / "benchmarks" / "results" / "benefit"
SITES = {
    "n10": "3 sites of 10 labels", "n20": "3 of 20", "n50": "3 of 50", "n100": "3 of 100", "n200": "3 of 200",
    "n1000": "3 of 1,000", "M2": "2 of 50", "M5": "5 of 50", "M8": "8 of 50",
    "rich": "200 labels beside two of 10", "one": "100 labels beside two of none",
    "core20": "3 of 20, a third of the columns everywhere", "core50": "3 of 50, a third of the columns everywhere",
    "same50": "3 of 50, the same labelled rows",
}  # fmt: skip
DIFFERENCES = {
    "offset50": "offsets with a deviation of 0.5", "offset-1-50": "offsets with a deviation of 1",
    "units50": "units that differ by a factor of 2", "flipped50": "the third site's sign flipped",
    "shuffled50": "the third site's labels shuffled",
}  # fmt: skip
SHARED_SETS = {
    "m50": "50 rows", "m250": "250 rows", "n50": "1,000 rows, or 45 % of a shorter set", "m5000": "5,000 rows",
    "mislinked10": "10 % of ids belong to other individuals", "mislinked30": "30 %",
    "leaning50": "leans to one end of a column", "noise50": "10 columns of noise at each site",
}  # fmt: skip
CHANGES = {
    "score": "score", "joined": "joined", "default score": "score, default rules", "default joined": "joined, default rules",
    "score, one missing": "score, one site missing", "private score": "score, private rows", "pooled": "pooled",
}  # fmt: skip


def load(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def benefit() -> dict[str, str]:
    """The generated parts of docs/research/benefit.md."""
    run = load("benefit")
    few = {name: CHANGES[name] for name in ("score", "joined")}
    return {
        "answer": by_regime(run, "labels", SITES, CHANGES),
        "differences": by_regime(run, "difference", DIFFERENCES, few),
        "shared sets": by_regime(run, "shared set", SHARED_SETS, few | {"sets": "sets"}),
        "verdicts": found(run["verdicts"], {name: words for name, words in SITES.items() if name != "one"}),
        "yes-no": found(run["yes-no"]),
        "local": by_regime(run, "labels", SITES, {"local": "the local model"}),
    }


def by_regime(run: dict, heading: str, regimes: dict[str, str], columns: dict[str, str]) -> str:
    """Changes of the error in some regimes, with the share of harmed sites in brackets."""
    names, *rows = run["changes"]
    at, known = [names.index(name) for name in columns], {each[0]: each for each in rows}
    shown = (row(words, *(known[name][k] or "–" for k in at)) for name, words in regimes.items() if name in known)
    return table(f"| {heading} | {' | '.join(columns.values())} |", shown)


def found(rows: list[list[str]], regimes: dict[str, str] | None = None) -> str:
    """A table as the study has it, of some regimes."""
    heading, *rest = rows
    kept = (each for each in rest if regimes is None or each[0] in regimes)
    return table(row(*heading), (row((regimes or {}).get(each[0], each[0]), *each[1:]) for each in kept))


def by_labels() -> str:
    """README's table: what a federation's default rules reach, by the number of labels."""
    columns = {"default score": "scored together", "default joined": "joined model"}
    names = {name: SITES[name] for name in ("n50", "n200", "n1000", "M8")} | {"n50": "3 sites of 50 labels"}
    return by_regime(load("benefit"), "labels", names, columns)
