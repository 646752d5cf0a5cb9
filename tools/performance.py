"""docs/performance.md, from docs/performance.json, which scripts of benchmarks/ wrote (the page names them).

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
NARROW = ("landmarks", "linear")  # forms whose mean R has fewer dimensions than a start-up has columns


def table(headings: str, rows: list[list[str]]) -> str:
    columns = headings.count("|") - 1
    return "\n".join([headings, "|" + "---:|" * columns, *("| " + " | ".join(row) + " |" for row in rows)])


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}"


def beside(row: dict) -> list[str]:
    return [ms(row["seconds"]), ms(row["limit"]), f"{row['seconds'] / row['limit']:.2f}"]


def share(gains: list[float]) -> str:
    return f"{100 * min(gains):.0f} to {100 * max(gains):.0f} %".replace("-", "−")


def vectors(rounds: int, asked: int = 0, start_up: int = 0) -> int:
    """Of length m, both ways; a start-up asks so many columns in so many rounds, and sites draw the first round's."""
    drawn = asked // start_up if start_up else 0
    return 2 * (rounds - start_up) + 2 * asked - drawn


def preconditioned(found: dict) -> dict[str, str]:
    """Of what a preconditioner from sums would save, what the page says."""
    link, runs, rows = found["link"], found["runs"], []
    gains: dict[str, list[float]] = {}
    ratios, seconds, waiting, known, certificate, lighter = [], [], [], [], [], 0
    for run in runs:
        plain, each = run["plain"]["rounds"], 8.0 * run["m"] / link["bytes/s"]
        ways = [(k, 1, found["rounds"]) for k, found in run["probes"].items()]
        ways += [(k, 2, found["rounds"]) for k, found in run["twice"].items()]
        for k, start_up, rounds in ways:
            ratios.append((plain - rounds) / int(k))
            kind = ("narrow" if run["form"] in NARROW else "wide", k if start_up == 1 else f"{k}_twice")
            gains.setdefault("_".join(kind), []).append(1.0 - rounds / plain)
        costs = [(plain, vectors(plain)), *((rounds, vectors(rounds, int(k), n)) for k, n, rounds in ways)]
        times = [rounds * link["round trip"] + each * carried for rounds, carried in costs]
        seconds.append(times[0] - min(times))
        waiting.append(1.0 - min(times) / times[0])
        lighter += min(carried for _, carried in costs[1:]) < costs[0][1]
        [eigenvectors] = run["eigenvectors"].values()
        certificate.append(1.0 - run["plain"]["true"] / plain)
        known.append(1.0 - eigenvectors["rounds"] / plain)
        rows.append(
            [run["data"], run["form"], str(run["sites"]), count(run["m"]), f"{run['coupling']:g}", str(plain)]
            + [str(run["plain"]["true"])]
            + [str(run["probes"][k]["rounds"]) for k in ("8", "16", "32", "64")]
            + [str(run["twice"]["64"]["rounds"]), str(eigenvectors["rounds"]), f"{times[0]:.2f}", f"{min(times):.2f}"]
        )
    return {
        "pre_table": table(
            "| data | form | sites | m | coupling | rounds | true error | 8 | 16 | 32 | 64 | 64, twice "
            "| 8 eigenvectors | s | least, s |",
            rows,
        ),
        "pre_each": f"{found['each']:g}".replace("e-0", "e-"),
        "pre_draws": str(found["draws"]),
        "pre_link": f"{1e3 * link['round trip']:g} ms and {8e-6 * link['bytes/s']:g} Mbit/s",
        "pre_runs": str(len(runs)),
        "pre_ratio": f"{max(ratios):.2f}",
        "pre_lighter": str(lighter),
        "pre_seconds": f"{min(seconds):.1f} to {max(seconds):.1f} s",
        "pre_waiting": share(waiting),
        "pre_eigenvectors": share(known),
        "pre_certificate": share(certificate),
        **{f"pre_{kind}": share(gain) for kind, gain in gains.items()},
    }


def directions(found: list[dict]) -> dict[str, str]:
    """Rounds and bytes in float64 and float32, and the ends' distance from the closed form."""
    rows, more = [], []
    by_what: dict[str, list[float]] = {"difference": [], "answer": []}
    for row in found:
        wide, narrow, sums = (row[kind] for kind in ("float64", "float32", "float32, sums"))
        all_sums, plain = row["float64, sums"], row["in memory"]["nothing"]
        for what, gains in by_what.items():
            if plain is not None and row["in memory"][what] is not None:
                gains.append(row["in memory"][what] / plain - 1.0)
        if wide["stop"] == narrow["stop"] == "CONVERGED":
            more.append(narrow["rounds"] / wide["rounds"] - 1.0)
        rounds = [f"{r['rounds']}{'' if r['stop'] == 'CONVERGED' else ' (stagnated)'}" for r in (wide, narrow, sums)]
        rows.append(
            [row["form"], str(row["sites"]), count(row["m"]), f"{row['coupling']:g}", f"{row['condition']:.0e}"]
            + [f"{row['each']:.0e}", *rounds]
            + [f"{narrow['bytes'] / wide['bytes']:.2f}", f"{sums['bytes'] / all_sums['bytes']:.2f}"]
            + [f"{end['true error']:.0e}" for end in (wide, narrow, sums)]
        )
    return {
        "directions": table(
            "| form | sites | m | coupling | 1 + μb | to | float64 | float32 | float32, sums | bytes | bytes, sums "
            "| error, float64 | float32 | float32, sums |",
            rows,
        ),
        "directions_more": share(more),
        **{f"directions_{what}": share(gains) for what, gains in by_what.items()},
        "directions_runs": str(len(more)),
    }


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
        for kind, shown in (("wall", "wall"), ("cpu", "CPU")):
            cells = [count(row["m"]), row["answers"], shown, ms(row[kind])]
            for limit in ("floor", "promises"):
                cells += [ms(row[f"{limit} {kind}"]), f"{row[kind] / row[f'{limit} {kind}']:.2f}"]
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
        **directions(found["directions"]),
        sites=found["wire"][0]["sites"],
        wire=table("| m | answers | time | ms | echo, ms | ratio | promises, ms | ratio |", wire),
        set_up=table("| what | s | peak, MB |", set_up),
        python=weighed["python"],
        installed=f"{plain['bytes'] / 1e6:.0f}",
        tools=f"{plain['tools'] / 1e6:.0f}",
        parts=", ".join(parts),
        estimators=f"{rest / 1e6:.0f}",
        agent=" and ".join(f"{row['most'] / 1e6:.0f} MB at m = {count(row['m'])}" for row in plain["agent"]),
        connected=", and the coordinator's at ".join(
            " and ".join(f"{row[who] / 1e6:.0f} MB at m = {count(row['m'])}" for row in found["connected"])
            for who in ("agent", "coordinator")
        ),
        before=f"{plain['agent'][0]['before'] / 1e6:.0f}",
        **preconditioned(found["preconditioner"]),
    )


if __name__ == "__main__":
    write_or_check(__doc__, page, PAGE)
