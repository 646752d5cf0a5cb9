"""docs/scaling.md, from docs/scaling.json, which benchmarks/scaling.py wrote.

    python tools/scaling.py --write     the page, from the figures
    python tools/scaling.py --check     fail if the page is not what --write would make

Nothing is measured here: a number in the page stands in the JSON file, or is computed below from such numbers.
"""

import json
from pathlib import Path

from pages import count, write_or_check  # beside this file

ROOT = Path(__file__).resolve().parent.parent
FIGURES, TEXT, PAGE = ROOT / "docs" / "scaling.json", ROOT / "tools" / "scaling.md", ROOT / "docs" / "scaling.md"


def table(headings: str, rows: list[str]) -> str:
    columns = headings.count("|") - 1
    return "\n".join([headings, "|" + "---:|" * columns, *rows])


def seconds(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"


class Figures:
    """The cases, and what is derived from them."""

    def __init__(self, results: dict):
        self.machine, self.cases = results["machine"], results["cases"]

    def of(self, part: str) -> list[dict]:
        return sorted((c for c in self.cases if c["part"] == part), key=lambda c: (c["sites"] * c["m"], c.get("k", 1)))

    def one(self, part: str, **wanted: int) -> dict:
        [case] = [c for c in self.of(part) if all(c[k] == v for k, v in wanted.items())]
        return case

    def about(self) -> str:
        loads = [c["load"] for c in self.cases]
        return (
            f"{self.machine['cpus']} cores ({self.machine['processor']}), {self.machine['memory_gib']} GiB; load "
            f"{min(loads):g} to {max(loads):g} while it was measured, so "
            f"above {self.machine['cpus']} other work had part of the cores."
        )

    def rounds(self, part: str) -> str:
        rows = []
        for c in self.of(part):
            here, ray = c["process"], c["ray"]
            cells = [count(c["sites"]), count(c["m"]), str(c["k"])]
            cells += [
                seconds(x) for x in (here["seconds"], here["algebra"], ray["seconds"], ray["algebra"], ray["beyond"])
            ]
            rows.append("| " + " | ".join(cells) + " |")
        return table("| sites | m | k | one process | its algebra | Ray | its algebra | beyond it |", rows)

    def closed(self) -> str:
        rows = [
            f"| {c['sites']} | {count(c['m'])} | {seconds(c['process'])} | {seconds(c['ray'])} | "
            f"{self.stacked_estimate(c['sites'] * (50 + c['m'])):.0f} | {8 * (c['sites'] * (50 + c['m'])) ** 2 / 2**30:.1f} |"
            for c in self.of("closed")
        ]
        return table(
            "| sites | m | one process, s | Ray, s | the stacked system, s (extrapolated) | its matrix, GiB |", rows
        )

    def stacked(self) -> str:
        rows = [
            f"| {c['sites']} | {count(c['m'])} | {count(c['sites'] * (50 + c['m']))} | {seconds(c['seconds'])} |"
            for c in self.of("stacked")
        ]
        return table("| sites | m | rows of its matrix | s |", rows)

    def stacked_estimate(self, rows: int) -> float:
        largest = self.of("stacked")[-1]
        return largest["seconds"] * (rows / (largest["sites"] * (50 + largest["m"]))) ** 3

    def constants(self) -> str:
        big = self.one("rounds", sites=1000, m=10_000)
        hundred = self.one("rounds", sites=100, m=10_000)
        per_number = big["process"]["algebra"] / (1000 * 10_000)
        machine = (big["process"]["beyond"] - hundred["process"]["beyond"]) / 900
        crossing = (big["ray"]["beyond"] - hundred["ray"]["beyond"]) / (900 * 10_000)
        self.derived = {"algebra": per_number, "machine": machine, "crossing": crossing}
        return table(
            "| constant | measured |",
            [
                f"| a site's algebra (rank 50), per shared instance | {per_number * 1e9:.1f} ns |",
                f"| the coordinator's machine and its sum, per answer of 10 000 numbers | {machine * 1e6:.0f} µs |",
                f"| beyond the algebra over Ray, per number that comes back | {crossing * 1e9:.2f} ns |",
            ],
        ).replace("---:|---:|", "---|---:|")

    def large(self) -> str:
        self.constants()
        one = self.derived["machine"] / 10_000  # a second a number, at the coordinator
        rows = []
        for M, m in ((10_000, 10_000), (1_000, 1_000_000), (10, 1_000_000_000)):
            answers = 8 * M * m
            rows.append(
                f"| {count(M)} | {count(m)} | {answers / 1e9:,.1f} GB | {answers / 1.25e9:,.1f} s | {one * M * m:,.1f} s | "
                f"{self.derived['algebra'] * m:,.2g} s | {8 * 50 * m / 1e9:,.2g} GB |".replace(",", " ")
            )
        return table(
            "| sites | m | answers a round | through one 10 Gbit/s port | the sum, at one core | a site's algebra "
            "| a site's factor |",
            rows,
        )


def page() -> str:
    figures = Figures(json.loads(FIGURES.read_text(encoding="utf-8")))
    parts = {
        "about": figures.about(),
        "rounds": figures.rounds("rounds"),
        "columns": figures.rounds("columns"),
        "exact": figures.rounds("exact"),
        "closed": figures.closed(),
        "stacked": figures.stacked(),
        "constants": figures.constants(),
        "large": figures.large(),
    }
    text = TEXT.read_text(encoding="utf-8")
    for name, made in parts.items():
        if f"{{{{{name}}}}}" not in text:
            raise SystemExit(f"{TEXT.name}: no place for {name!r}")
        text = text.replace(f"{{{{{name}}}}}", made)
    return text


if __name__ == "__main__":
    write_or_check(__doc__, page, PAGE)
