"""Run the benefit study on real tables: python -m benchmarks.benefit --data DIR --jobs 2.

DIR has CSV files and manifest.json (docs/research/papers.md). The tables go to benefit.md in the
results folder, and to benefit.json. An interrupted study resumes from benefit.jsonl.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.benefit.report import markdown, tables
from benchmarks.benefit.study import CHOSEN_ON, BenefitStudy
from benchmarks.papers.jobs import run_jobs, software
from coreg_core.errors import CoregError


def run(study: BenefitStudy, out: Path, jobs: int) -> None:
    """Do the missing jobs, print the tables, and write benefit.md and benefit.json."""
    results, seconds = run_jobs(study.jobs(), study.do, out / "benefit.jsonl", jobs)
    by_regime: dict[str, dict[str, list[dict[str, Any]]]] = {name: {} for name in study.regimes}
    for key, found in results.items():
        name, regime, _ = key.split("/")
        if found:
            by_regime[regime].setdefault(name, []).extend(found["sites"])
    found = tables({name: of for name, of in by_regime.items() if of}, CHOSEN_ON)
    made = "\n\n".join(markdown(heading, rows) for heading, rows in found.values() if rows)
    closing = (
        f"{study.draws} draws of each regime; {sum(map(bool, results.values()))} federations; "
        f"{seconds:.0f} s of one core; {software()}."
    )
    (out / "benefit.md").write_text(f"{made}\n\n{closing}\n", encoding="utf-8")
    page = {
        "draws": study.draws,
        "sets": study.sets,
        **{name: [heading, *rows] for name, (heading, rows) in found.items()},
    }
    (out / "benefit.json").write_text(
        json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(made, closing, sep="\n\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.benefit",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--sets", help="names of data sets, with commas [all of the study]")
    parser.add_argument("--regimes", help="names of partitions, with commas [all]")
    parser.add_argument("--draws", type=int, default=8, help="draws of each set and regime [8]")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes [1]")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "benefit"
    )
    asked = parser.parse_args()
    given = {
        key: tuple(text.split(","))
        for key in ("sets", "regimes")
        if (text := getattr(asked, key)) is not None
    }
    try:
        run(BenefitStudy(asked.data.resolve(), draws=asked.draws, **given), asked.out, asked.jobs)
    except CoregError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
