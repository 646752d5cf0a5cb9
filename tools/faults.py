"""`make faults`: every drill of real processes, repeated, then storms; docs/research/reliability.md
has the result.

    python tools/faults.py [--times 5] [--seeds 300]

A drill is a test with the marker `drill`; its name is its sentence on the page.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "research" / "reliability.md"
TABLE = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def sentence(test: str) -> str:
    return test.removeprefix("test_").replace("_", " ")


def drills(text: str) -> list[str]:
    """The names of the drills in the source of a test file."""
    whole = re.search(r"^pytestmark = (?:.+\n)*?.*mark\.drill", text, re.MULTILINE) is not None
    found = re.finditer(r"((?:^@.*\n)*)^def (test_\w+)", text, re.MULTILINE)
    return [match[2] for match in found if whole or "mark.drill" in match[1]]


def run_drills(times: int) -> str:
    """The table of drills: one row a test, over its parameters and repetitions."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "drills.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n0",
            "-m",
            "drill",
            f"--junitxml={out}",
            "tests/e2e",
        ]
        subprocess.run(
            command, cwd=ROOT, env={**os.environ, "COREG_FAULTS": str(times)}, check=False
        )
        cases = [*ET.parse(out).iter("testcase")]
    rows = ["| drill | times | held | seconds each |", "|---|---|---|---|"]
    for name in dict.fromkeys(case.get("name", "").partition("[")[0] for case in cases):
        mine = [case for case in cases if case.get("name", "").partition("[")[0] == name]
        ran = [case for case in mine if case.find("skipped") is None]
        held = [case for case in ran if case.find("failure") is None and case.find("error") is None]
        mean = sum(float(case.get("time", 0)) for case in ran) / len(ran) if ran else 0.0
        rows.append(f"| {sentence(name)} | {len(ran)} | {len(held)} | {mean:.0f} |")
    return "\n".join(rows)


def run_storms(seeds: int) -> str:
    command = [sys.executable, "-m", "tests.storm", "--seeds", str(seeds), "--json"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    told = [json.loads(line) for line in said.splitlines()]
    storms = [line for line in told if line["event"] == "storm"]
    hours = sum(s["seconds"] for s in storms) / 3600
    answers = sum(s["answers"] for s in storms)
    broken = sum(bool(s["broken"]) for s in storms)
    return (
        f"{len(storms)} storms ({hours:.0f} simulated hours, {answers:,} answers) took"
        f" {told[-1]['seconds']:.0f} s\non two cores. An invariant was broken in {broken}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=300)
    asked = parser.parse_args()
    made = {"drills": run_drills(asked.times), "storms": run_storms(asked.seeds)}
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(
        TABLE.sub(lambda match: f"{match[1]}{made[match[2]]}\n{match[3]}", text), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
