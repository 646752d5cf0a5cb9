"""docs/performance.md, from docs/performance.json, which benchmarks/performance.py, round_trip.py and installation.py wrote.

    python tools/performance.py --write     the page, from the figures
    python tools/performance.py --check     fail if the page is not what --write would make

Nothing is measured here: a number in the page stands in the JSON file, or is computed below from such numbers.
"""

import json
from pathlib import Path

from pages import count, write_or_check  # beside this file

ROOT = Path(__file__).resolve().parent.parent
FIGURES, TEXT = ROOT / "docs" / "performance.json", ROOT / "tools" / "performance.md"
PAGE = ROOT / "docs" / "performance.md"


def table(headings: str, rows: list[list[str]]) -> str:
    columns = headings.count("|") - 1
    return "\n".join([headings, "|" + "---:|" * columns, *("| " + " | ".join(row) + " |" for row in rows)])


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def beside(row: dict) -> list[str]:
    return [ms(row["seconds"]), ms(row["limit"]), f"{row['seconds'] / row['limit']:.2f}"]


def page() -> str:
    found = json.loads(FIGURES.read_text(encoding="utf-8"))
    machine, [stopped] = found["machine"], found["stopped"]
    answers = [
        [form, count(row["m"]), count(row["rank"]), *beside(row)]
        for form in ("semi-parametric", "exact")
        for row in found[form]
    ]
    wire = []
    for row in found["wire"]:
        cells = [count(row["m"]), row["answers"]]
        for kind in ("wall", "cpu"):
            cells += [ms(row[kind]), ms(row[f"floor {kind}"]), f"{row[kind] / row[f'floor {kind}']:.2f}"]
        wire.append(cells)
    weighed = found["installation"]
    plain, rest = weighed["plain"], weighed["estimators"]["bytes"] - weighed["plain"]["bytes"]
    names = [name for name in plain["parts"] if name != "tools"]
    parts = [f"{name} {plain['parts'][name] / 1e6:.0f}" for name in names]
    set_up = [
        [name, "" if row["seconds"] is None else f"{row['seconds']:.1f}", f"{row['mb']:.0f}"]
        for name, row in found["set-up"].items()
    ]
    return TEXT.read_text(encoding="utf-8").format(
        about=f"{machine['cpus']} cores, {machine['processor']}, load {machine['load']:.1f} when it began",
        gigabytes=f"{machine['bytes/s'] / 1e9:.1f}",
        answers=table("| form | m | rank | ms | limit, ms | ratio |", answers),
        path_m=count(found["path"][0]["m"]),
        paths=table(
            "| couplings | ms | one at a time, ms | ratio |",
            [[str(row["couplings"]), *beside(row)] for row in found["path"]],
        ),
        couplings=stopped["couplings"],
        stopped_m=count(stopped["m"]),
        stopped_rounds=stopped["rounds"],
        stopped=f"{stopped['seconds']:.2f}",
        stopped_without=f"{stopped['without']:.2f}",
        steps=table(
            "| m | columns | ms | limit, ms | ratio |",
            [[count(row["m"]), str(row["columns"]), *beside(row)] for row in found["step"]],
        ),
        rounds=table(
            "| sites | coupling | spread | rounds | by the general certificate | true error |",
            [
                [str(row["sites"]), f"{row['coupling']:g}", f"{row['spread']:.1f}"]
                + [str(row[kind]) for kind in ("sharp", "general", "true")]
                for row in found["rounds"]
            ],
        ),
        sites=found["wire"][0]["sites"],
        wire=table("| m | answers | wall, ms | echo | ratio | CPU, ms | echo | ratio |", wire),
        set_up=table("| what | s | peak, MB |", set_up),
        python=weighed["python"],
        installed=f"{plain['bytes'] / 1e6:.0f}",
        tools=f"{plain['tools'] / 1e6:.0f}",
        parts=", ".join(parts),
        estimators=f"{rest / 1e6:.0f}",
    )


if __name__ == "__main__":
    write_or_check(__doc__, page, PAGE)
