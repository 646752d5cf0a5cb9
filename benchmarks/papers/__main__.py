"""Run papers' experiments on real data: python -m benchmarks.papers all --data DIR --jobs 2.

DIR has CSV files and manifest.json; --fetch fills it from OpenML. Each report is written to
NAME.txt in the results folder, and shows the paper's table beside ours. An interrupted run resumes
from NAME.jsonl.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.papers.pool import fetch
from benchmarks.papers.runner import NAMES, find, run_experiment
from coreg_core.errors import CoregError


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", help=", ".join(NAMES) + ", or all")
    parser.add_argument("--data", type=Path, required=True, help="folder of data sets")
    parser.add_argument("--quick", action="store_true", help="run a small version, as a test")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes [1]")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "papers"
    )
    parser.add_argument(
        "--fetch", action="store_true", help="download missing data sets from OpenML"
    )
    asked = parser.parse_args()
    try:
        experiments = [find(each) for each in (NAMES if asked.name == "all" else (asked.name,))]
        if asked.fetch:
            wanted = tuple(
                dict.fromkeys(each for experiment in experiments for each in experiment.sets)
            )
            for lacking in fetch(wanted, asked.data):
                print(
                    f"{lacking}: not on OpenML in a readable form. The tables will not have its"
                    " rows.",
                    file=sys.stderr,
                )
        for experiment in experiments:
            report = run_experiment(
                experiment, asked.data, asked.out, quick=asked.quick, jobs=asked.jobs
            )
            print("\n".join(report.findings))
    except CoregError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
