"""Generated parts of docs/research/papers.md, from results in benchmarks/results."""

import json
import re

from render import ROOT, paragraph, row, table


def parts() -> dict[str, str]:
    """The generated parts of docs/research/papers.md."""
    return {"sweeps": sweeps(), "bounds": findings("xnv-bounds"), "steps": findings("snf-steps")}


def findings(name: str) -> str:
    """The findings of a paper's experiment, as its report has them."""
    report = (ROOT / "benchmarks" / "results" / "papers" / f"{name}.txt").read_text(
        encoding="utf-8"
    )
    found = re.findall(r"^- (.+(?:\n  .+)*)", report, re.MULTILINE)
    return "\n".join(paragraph(" ".join(each.split()), "- ", "  ") for each in found)


def sweeps() -> str:
    """The sweeps of Algorithm 1 and the bounds on them (benchmarks/rounds.py)."""
    rows = json.loads(
        (ROOT / "benchmarks" / "results" / "rounds.json").read_text(encoding="utf-8")
    )["rows"]
    headings = (
        "| sites | λ | bound, coefficients c | orthonormal | G_v = I | exact rate | measured |"
    )
    return table(
        headings,
        (
            row(
                r["sites"], r["coupling"], f"{r['bound']['paper']:.0e}",
                f"{r['bound']['orthonormal']:,.0f}",
                f"{r['bound']['normal']:,.0f}", f"{r['exact']:,.0f}", r["sweeps"],
            )
            for r in rows
        ),
    )  # fmt: skip
