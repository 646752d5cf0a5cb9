"""Run the benefit study on real tables: python -m benchmarks.benefit --data DIR --draws 8 --jobs 2.

DIR has CSV files and manifest.json (docs/research/experiments.md). The report goes to benefit.txt in the results folder, the
figures that the docs quote to benefit.json. An interrupted study resumes from benefit.jsonl.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from benchmarks.benefit.report import report
from benchmarks.benefit.study import BenefitStudy
from benchmarks.benefit.summary import headline, site_outcomes
from benchmarks.papers.jobs import run_jobs, software
from coreg_core.errors import CoregError


def run(study: BenefitStudy, out: Path, jobs: int) -> None:
    """Do the missing jobs, and write benefit.txt and benefit.json."""
    results, seconds = run_jobs(study.jobs(), study.do, out / "benefit.jsonl", jobs)
    found = site_outcomes(results)
    made, federations = report(found), sum(map(bool, results.values()))
    closing = f"{federations} federations, {seconds:.0f} s of one core in total; {software()}."
    text = made.text("Benefit of joining", f"{study.draws} draws of each set and regime", closing)
    (out / "benefit.txt").write_text(text, encoding="utf-8")
    tables = {table.title: {"header": table.header, "rows": table.rows} for table in made.tables}
    page = {"study": asdict(study) | {"folder": None}, "headline": headline(found), "tables": tables}
    (out / "benefit.json").write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.benefit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--sets", help="names of data sets, with commas [all of the study]")
    parser.add_argument("--regimes", help="names of partitions, with commas [all]")
    parser.add_argument("--draws", type=int, default=3, help="draws of each set and regime [3]")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes [1]")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "benefit")
    asked = parser.parse_args()
    given = {key: tuple(text.split(",")) for key in ("sets", "regimes") if (text := getattr(asked, key)) is not None}
    try:
        run(BenefitStudy(asked.data.resolve(), draws=asked.draws, **given), asked.out, asked.jobs)
    except CoregError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
