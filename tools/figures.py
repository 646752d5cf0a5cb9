"""Parts of docs/research/performance.md, and the plots of the research pages, from JSON files of
benchmarks/.

Nothing is measured here: each number comes from a JSON file that its page names, or is computed
below from such numbers.
"""

import json
from pathlib import Path
from typing import Any

from render import ROOT, count, paragraph, row, table

from examples.demo.svg import Plot, Series, draw

DOCS = ROOT / "docs" / "research"
RESULTS = ROOT / "benchmarks" / "results"
RIGHT = "---:"


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def seconds(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def sizes(rows: list[dict], who: str) -> str:
    return " and ".join(f"{each[who] / 1e6:.0f} MB at m = {count(each['m'])}" for each in rows)


def performance() -> dict[str, str]:
    """The generated parts of docs/research/performance.md that come from performance.json and
    scaling.json.
    """
    found = json.loads((RESULTS / "performance.json").read_text(encoding="utf-8"))
    machine = found["machine"]
    weighed = found["installation"]["plain"]
    fits = found["fits"]
    short, *_, long = (each for each in found["wire"] if each["answers"] == "secure")
    largest = fits["ridges"][-1]
    computed = max(
        each["seconds"] / each["limit"]
        for form in ("semi-parametric", "exact")
        for each in found[form]
    )
    wire = [
        row(count(r["m"]), ms(r["wall"]), *(
            cell for limit in ("floor", "promises")
            for cell in (ms(r[f"{limit} wall"]), f"{r['wall'] / r[f'{limit} wall']:.2f}")
        ))
        for r in found["wire"] if r["answers"] == "secure"
    ]  # fmt: skip
    return {
        "answer": paragraph(
            f"With 200 labelled and {count(largest['m'])} unlabelled rows, semi-parametric coRLSR"
            f" takes {largest['ratio']:.1f} times as long as a kernel ridge regression of each"
            f" view. A round of {short['sites']} sites over mutual TLS takes"
            f" {1e3 * short['wall']:.0f} ms at m = {count(short['m'])} and {1e3 * long['wall']:.0f}"
            f" ms at m = {count(long['m'])}, with masks, ledgers and the run store"
            f" ({machine['cpus']} cores). At m = {count(long['m'])} that is"
            f" {long['wall'] / long['floor wall']:.2f} times a bare gRPC echo of the same bytes. A"
            f" site's own computation takes at most {computed:.2f} times as long as reading its"
            " operands once."
        ),
        "about": (
            f"{machine['cpus']} cores, {machine['processor']}, load {machine['load']:.1f} at the"
            " start"
        ),
        "wire": table("| m | ms | echo, ms | ratio | promises, ms | ratio |", wire, RIGHT),
        "installed": f"{weighed['bytes'] / 1e6:.0f}",
        "agent": sizes(weighed["agent"], "most"),
        "before": f"{weighed['agent'][0]['before'] / 1e6:.0f}",
        "scaling": scaling(),
    }


def scaling() -> str:
    found = json.loads((RESULTS / "scaling.json").read_text(encoding="utf-8"))
    cases = [case for case in found["cases"] if case["part"] == "rounds"]
    big = next(case for case in cases if case["sites"] == 1000 and case["m"] == 10_000)
    return paragraph(
        "In the semi-parametric form, time and memory grow in proportion to sites × shared"
        f" instances: a round of {count(big['sites'])} sites at m = {count(big['m'])} takes"
        f" {seconds(big['process']['seconds'])} s in one process and"
        f" {seconds(big['ray']['seconds'])} s over Ray ({found['machine']['cpus']} cores). In the"
        " exact form two m × m matrices a site are the limit: 1.6 GB at m = 10⁴. One coordinator"
        " takes at most 10 000 sites; more would need a tree of summing relays, which does not"
        " exist yet."
    )


def demonstration() -> Plot:
    """The demonstration's errors by the number of labels, the mean of the sites
    (benchmarks/diabetes.py).
    """
    draws = json.loads(
        (ROOT / "examples" / "demo" / "diabetes_draws.json").read_text(encoding="utf-8")
    )
    names = {
        "local": "local model", "agreement": "agreement (coRLSR)", "joined": "joined model",
        "score": "score",
        "pooled": "pooled data",
    }  # fmt: skip
    curve = {float(n): sites.values() for n, sites in draws["curve"].items()}
    lines = tuple(
        Series(
            label,
            tuple(curve),
            tuple(sum(site[key] for site in sites) / len(sites) for sites in curve.values()),
            "line",
        )
        for key, label in names.items()
    )
    error = "root mean square error, mean of three sites"
    return Plot("diabetes-labels", "Error by labels", "labels at each site", error, lines)


def line(label: str, points: dict[float, float]) -> Series:
    """Points in the order of x, joined by a line."""
    return Series(label, *zip(*sorted(points.items()), strict=True), "line")


def round_times(wire: list[dict[str, Any]]) -> dict[str, dict[float, float]]:
    """Milliseconds of a round by shared instances m, for each kind of answer."""
    columns = {"echo": "floor wall", "plain records": "promises wall"}
    times: dict[str, dict[float, float]] = {
        kind: {each["m"]: 1e3 * each["wall"] for each in wire if each["answers"] == kind}
        for kind in ("secure", "plaintext")
    }
    for kind in ("plain records", "echo"):
        times[kind] = {each["m"]: 1e3 * each[columns[kind]] for each in wire}
    return times


def pictures() -> dict[Path, str]:
    """Plots of the pages, by file."""
    found = json.loads((RESULTS / "performance.json").read_text(encoding="utf-8"))
    cases = json.loads((RESULTS / "scaling.json").read_text(encoding="utf-8"))["cases"]
    needed = {"to a bound of 1e-4": [(run["true"], run["sharp"]) for run in found["rounds"]]}
    certified = tuple(
        Series(label, *zip(*sorted(pairs), strict=True), "points")
        for label, pairs in needed.items()
    )
    times = round_times(found["wire"])
    sizes = [case for case in cases if case["part"] == "rounds"]
    rounds = {
        label: {case["sites"] * case["m"]: case[kind]["seconds"] for case in sizes}
        for kind, label in (("process", "one process"), ("ray", "Ray"))
    }
    plots = (
        demonstration(),
        Plot(
            "certificate-rounds", "Rounds until the certificate holds, against rounds needed",
            "rounds until the true error holds", "rounds until the certificate holds", certified,
            diagonal=True,
        ),
        Plot(
            "performance-wire", "A round of 4 sites over mutual TLS", "shared instances m",
            "ms a round",
            tuple(line(label, points) for label, points in times.items()), log_x=True, log_y=True,
        ),
        Plot(
            "scaling-rounds", "A round, semi-parametric", "sites × shared instances",
            "seconds a round",
            tuple(line(label, points) for label, points in rounds.items()), log_x=True, log_y=True,
        ),
    )  # fmt: skip
    return {DOCS / f"{plot.name}.svg": draw(plot) for plot in plots}
