"""The scripts of benchmarks/ find what they import: nothing else in the suite runs them."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1])\nfor name in sys.argv[2:]:\n    assert __import__(name), name"


def test_every_script_finds_what_it_imports():
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert "harness" in names
    command = [sys.executable, "-c", PROGRAM, FOLDER, *names]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
