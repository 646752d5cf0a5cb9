"""Parts of docs/research/performance.md and scaling.md, and the plots of these pages, from JSON files of benchmarks/.

Nothing is measured here: each number comes from a JSON file that its page names, or is computed below from such numbers.
"""

import json
from pathlib import Path

from render import ROOT, count, paragraph, row, table

from coreg_wire.terminal.svg import Plot, Series, draw

DOCS, RESULTS = ROOT / "docs" / "research", ROOT / "benchmarks" / "results"
RIGHT = "---:"


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def seconds(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}" if value < 10 else f"{value:.0f}"


def beside(measured: dict) -> list[str]:
    return [ms(measured["seconds"]), ms(measured["limit"]), f"{measured['seconds'] / measured['limit']:.2f}"]


def sizes(rows: list[dict], who: str) -> str:
    return " and ".join(f"{each[who] / 1e6:.0f} MB at m = {count(each['m'])}" for each in rows)


def fits(found: dict) -> dict[str, str]:
    """Fits against the same formulas, and against kernel ridge regressions of the same rows."""
    return {
        "formulas": table(
            "| form | labelled | unlabelled | ms | plain numpy, ms | ratio |",
            [row(r["form"], r["n"], count(r["m"]), *beside(r)) for r in found["formulas"]],
            RIGHT,
        ),
        "ridges": table(
            "| unlabelled | ms | kernel ridge, ms | ratio |",
            [row(count(r["m"]), *beside(r)) for r in found["ridges"]],
            RIGHT,
        ),
        "solvers": table(
            "| form | solver | rounds | ms | their work, ms | ratio |",
            [row(r["form"], r["solver"], r["rounds"], *beside(r)) for r in found["solvers"]],
            RIGHT,
        ),
        "grows": ", ".join(f"{1e3 * r['seconds']:.0f} ms with {r['n']}" for r in found["grows"]),
        "additive": " and ".join(f"{r['seconds']:.2f} s at m = {count(r['m'])}" for r in found["additive"]),
    }


def performance() -> dict[str, str]:
    found = json.loads((RESULTS / "performance.json").read_text(encoding="utf-8"))
    machine, weighed = found["machine"], found["installation"]
    plain = weighed["plain"]
    wire = [
        row(count(each["m"]), each["answers"], shown, ms(each[kind]), *(
            cell for limit in ("floor", "promises")
            for cell in (ms(each[f"{limit} {kind}"]), f"{each[kind] / each[f'{limit} {kind}']:.2f}")
        ))
        for each in found["wire"] for kind, shown in (("wall", "wall"), ("cpu", "CPU"))
    ]  # fmt: skip
    short, *_, long = (each for each in found["wire"] if each["answers"] == "secure")
    largest = found["fits"]["ridges"][-1]
    computed = max(each["seconds"] / each["limit"] for form in ("semi-parametric", "exact") for each in found[form])
    return {
        "answer": paragraph(
            f"With 200 labelled and {count(largest['m'])} unlabelled rows, semi-parametric coRLSR takes {largest['ratio']:.1f} "
            "times as long as a kernel ridge regression of each view. "
            f"A round of {short['sites']} sites over mutual TLS takes {1e3 * short['wall']:.0f} ms at m = {count(short['m'])} "
            f"and {1e3 * long['wall']:.0f} ms at m = {count(long['m'])}, with masks, ledgers and the run store "
            f"({machine['cpus']} cores). At m = {count(long['m'])} that is {long['wall'] / long['floor wall']:.2f} times "
            "a bare gRPC echo of the same bytes. A site's own computation takes at most "
            f"{computed:.2f} times as long as reading its operands once."
        ),
        **fits(found["fits"]),
        "about": f"{machine['cpus']} cores, {machine['processor']}, load {machine['load']:.1f} at the start",
        "gigabytes": f"{machine['bytes/s'] / 1e9:.1f}",
        "answers": table(
            "| form | m | rank | ms | limit, ms | ratio |",
            [
                row(f, count(r["m"]), count(r["rank"]), *beside(r))
                for f in ("semi-parametric", "exact")
                for r in found[f]
            ],
            RIGHT,
        ),
        "path_m": count(found["path"][0]["m"]),
        "paths": table(
            "| couplings | ms | one at a time, ms | ratio |",
            [row(each["couplings"], *beside(each)) for each in found["path"]],
            RIGHT,
        ),
        "steps": table(
            "| m | columns | ms | limit, ms | ratio |",
            [row(count(each["m"]), each["columns"], *beside(each)) for each in found["step"]],
            RIGHT,
        ),
        "rounds": table(
            "| sites | coupling | spread | rounds | by the general certificate | true error |",
            [
                row(r["sites"], f"{r['coupling']:g}", f"{r['spread']:.1f}", r["sharp"], r["general"], r["true"])
                for r in found["rounds"]
            ],
            RIGHT,
        ),
        "sites": str(found["wire"][0]["sites"]),
        "wire": table("| m | answers | time | ms | echo, ms | ratio | promises, ms | ratio |", wire, RIGHT),
        "set_up": table(
            "| what | s | peak, MB |",
            [
                row(name, "" if each["seconds"] is None else f"{each['seconds']:.1f}", f"{each['mb']:.0f}")
                for name, each in found["set-up"].items()
            ],
            RIGHT,
        ),
        "python": weighed["python"],
        "installed": f"{plain['bytes'] / 1e6:.0f}",
        "tools": f"{plain['tools'] / 1e6:.0f}",
        "parts": ", ".join(f"{name} {size / 1e6:.0f}" for name, size in plain["parts"].items() if name != "tools"),
        "agent": sizes(plain["agent"], "most"),
        "connected": f"{sizes(found['connected'], 'agent')}, and the coordinator's at {sizes(found['connected'], 'coordinator')}",
        "before": f"{plain['agent'][0]['before'] / 1e6:.0f}",
    }


def scaling() -> dict[str, str]:
    found = json.loads((RESULTS / "scaling.json").read_text(encoding="utf-8"))
    machine, cases, loads = found["machine"], found["cases"], [case["load"] for case in found["cases"]]

    def of(part: str) -> list[dict]:
        return sorted((c for c in cases if c["part"] == part), key=lambda c: (c["sites"] * c["m"], c.get("k", 1)))

    def rounds(part: str) -> str:
        rows = []
        for c in of(part):
            here, ray = c["process"], c["ray"]
            times = (here["seconds"], here["algebra"], ray["seconds"], ray["algebra"], ray["beyond"])
            rows.append(row(count(c["sites"]), count(c["m"]), c["k"], *map(seconds, times)))
        return table("| sites | m | k | one process | its algebra | Ray | its algebra | beyond it |", rows, RIGHT)

    def matrix(case: dict) -> int:
        return case["sites"] * (50 + case["m"])

    largest = of("stacked")[-1]
    big, hundred = (next(c for c in of("rounds") if c["sites"] == M and c["m"] == 10_000) for M in (1000, 100))
    algebra = big["process"]["algebra"] / (1000 * 10_000)
    machine_time = (big["process"]["beyond"] - hundred["process"]["beyond"]) / 900
    crossing = (big["ray"]["beyond"] - hundred["ray"]["beyond"]) / (900 * 10_000)
    large = []
    for M, m in ((10_000, 10_000), (1_000, 1_000_000), (10, 1_000_000_000)):
        answers = 8 * M * m
        site, added = f"{algebra * m:,.2g} s", f"{machine_time / 10_000 * M * m:,.1f} s"
        port, factor = f"{answers / 1.25e9:,.1f} s", f"{8 * 50 * m / 1e9:,.2g} GB"
        cells = row(count(M), count(m), f"{answers / 1e9:,.1f} GB", port, added, site, factor)
        large.append(cells.replace(",", " "))
    return {
        "answer": paragraph(
            "In the semi-parametric form, time and memory grow in proportion to sites × shared instances: a round of "
            f"{count(big['sites'])} sites at m = {count(big['m'])} takes {seconds(big['process']['seconds'])} s in one process "
            f"and {seconds(big['ray']['seconds'])} s over Ray ({machine['cpus']} cores). In the exact form two m × m matrices "
            "a site are the limit: 1.6 GB at m = 10⁴. One coordinator takes at most 10 000 sites; more would need a tree of "
            "summing relays, which does not exist yet."
        ),
        "about": (
            f"{machine['cpus']} cores ({machine['processor']}), {machine['memory_gib']} GiB; load {min(loads):g} to "
            f"{max(loads):g} during the measurement, so above {machine['cpus']} other work used part of the cores."
        ),
        **{part: rounds(part) for part in ("rounds", "columns", "exact")},
        "closed": table(
            "| sites | m | one process, s | Ray, s | the stacked system, s (extrapolated) | its matrix, GiB |",
            [
                row(
                    c["sites"], count(c["m"]), seconds(c["process"]), seconds(c["ray"]),
                    f"{largest['seconds'] * (matrix(c) / matrix(largest)) ** 3:.0f}", f"{8 * matrix(c) ** 2 / 2**30:.1f}",
                )
                for c in of("closed")
            ],
            RIGHT,
        ),
        "stacked": table(
            "| sites | m | rows of its matrix | s |",
            [row(c["sites"], count(c["m"]), count(matrix(c)), seconds(c["seconds"])) for c in of("stacked")],
            RIGHT,
        ),
        "constants": table(
            "| constant | measured |",
            [
                row("a site's algebra (rank 50), per shared instance", f"{algebra * 1e9:.1f} ns"),
                row("the coordinator's machine and its sum, per answer of 10 000 numbers", f"{machine_time * 1e6:.0f} µs"),
                row("beyond the algebra over Ray, per number that comes back", f"{crossing * 1e9:.2f} ns"),
            ],
        ),
        "large": table(
            "| sites | m | answers a round | through one 10 Gbit/s port | the sum, at one core | a site's algebra "
            "| a site's factor |",
            large,
            RIGHT,
        ),
    }  # fmt: skip


def demonstration() -> Plot:
    """The demonstration's errors by the number of labels, the mean of the sites (benchmarks/diabetes.py)."""
    draws = json.loads((ROOT / "examples" / "demo" / "diabetes_draws.json").read_text(encoding="utf-8"))
    names = {
        "local": "local model", "agreement": "agreement (coRLSR)", "joined": "joined model", "score": "score",
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


def pictures() -> dict[Path, str]:
    """Plots of the pages, by file."""
    found = json.loads((RESULTS / "performance.json").read_text(encoding="utf-8"))
    cases = json.loads((RESULTS / "scaling.json").read_text(encoding="utf-8"))["cases"]
    needed = {"to a bound of 1e-4": [(run["true"], run["sharp"]) for run in found["rounds"]]}
    certified = tuple(Series(label, *zip(*sorted(pairs), strict=True), "points") for label, pairs in needed.items())
    wire = [*found["wire"], *({**each, "answers": "echo", "wall": each["floor wall"]} for each in found["wire"])]
    wire += [{**each, "answers": "plain records", "wall": each["promises wall"]} for each in found["wire"]]
    times = {
        kind: {each["m"]: 1e3 * each["wall"] for each in wire if each["answers"] == kind}
        for kind in ("secure", "plaintext", "plain records", "echo")
    }
    sizes = [case for case in cases if case["part"] == "rounds"]
    rounds = {
        label: {case["sites"] * case["m"]: case[kind]["seconds"] for case in sizes}
        for kind, label in (("process", "one process"), ("ray", "Ray"))
    }
    plots = (
        demonstration(),
        Plot(
            "certificate-rounds", "Rounds until the certificate holds, against rounds needed",
            "rounds until the true error holds", "rounds until the certificate holds", certified, diagonal=True,
        ),
        Plot(
            "performance-wire", "A round of 4 sites over mutual TLS", "shared instances m", "ms a round",
            tuple(line(label, points) for label, points in times.items()), log_x=True, log_y=True,
        ),
        Plot(
            "scaling-rounds", "A round, semi-parametric", "sites × shared instances", "seconds a round",
            tuple(line(label, points) for label, points in rounds.items()), log_x=True, log_y=True,
        ),
    )  # fmt: skip
    return {DOCS / f"{plot.name}.svg": draw(plot) for plot in plots}
