"""Disk usage of a plain agent or coordinator: `pip install .` in a new environment, and its parts.

    python benchmarks/installation.py [--write]      --write saves it in
    benchmarks/results/performance.json, for
    docs/research/performance.md

Needs the index. Bytes are the files' lengths, including pip's byte code. *tools* are pip and
setuptools, which Python's `venv` adds. It also measures an agent's memory: a process that reads a
table, factors it (semi-parametric) and answers once, with the agent's own modules; the figure is
the kernel's record of its peak.
"""

import json
import platform
import random
import subprocess
import venv
from pathlib import Path

from harness import PERFORMANCE, ROOT, arguments, folder, keep

TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
MOST = 6  # parts with a row of their own
LABELLED = 100
COLUMNS = 8
SHARED = (10_000, 100_000)
AGENT = """
import sys
import numpy as np
import site_agent.service.daemon
from pathlib import Path
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.machine.agreement import factor
from coreg_core.objectives.agreement import Agreement
def peak():
    print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
peak()
data = prepare(Inputs(table=Path(sys.argv[1]), target="y", id="id")).data
factor(Agreement(form="semi-parametric"), data, data.y - data.y.mean()).respond(np.ones((len(data.Z), 1)), np.array([0.1]))
peak()
"""


def weight(path: Path) -> int:
    """Bytes of the files below, or of the file."""
    if path.is_dir() and not path.is_symlink():
        return sum(weight(each) for each in path.iterdir())
    return path.lstat().st_size


def part(name: str) -> str:
    """The package of a name in site-packages."""
    stem = name.removesuffix(".libs").split("-")[0]
    if stem in TOOLS or stem == "distutils":
        return "tools"
    return "polars" if stem.startswith("_polars_runtime") else stem


def installed() -> dict[str, object]:
    """Sizes of a temporary environment with this package."""
    with folder() as place:
        venv.create(place, with_pip=True)
        python = place / "bin" / "python"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, str(ROOT)], check=True, timeout=500)
        [packages] = place.glob("lib/python*/site-packages")
        parts: dict[str, int] = {}
        for each in packages.iterdir():
            parts[part(each.name)] = parts.get(part(each.name), 0) + weight(each)
        whole = weight(place)
        largest = sorted(parts.items(), key=lambda item: -item[1])[:MOST]
        found = {"bytes": whole, "parts": dict(largest), "tools": parts["tools"]}
        return found | {"agent": [held(python, m, place) for m in SHARED]}


def held(python: Path, m: int, place: Path) -> dict[str, float]:
    """Bytes of memory of an agent's work in that environment, before its data and at the peak."""
    draws = random.Random(0)
    table = place / "table.csv"
    with table.open("w", encoding="utf-8") as file:
        file.write(f"id,{','.join(f'x{i}' for i in range(COLUMNS))},y\n")
        for i in range(LABELLED + m):
            x = [f"{draws.gauss(0, 1):.4f}" for _ in range(COLUMNS)]
            file.write(f"p{i},{','.join(x)},{f'{draws.gauss(0, 1):.4f}' if i < LABELLED else ''}\n")
    command = [python, "-c", AGENT, table]
    environment = {"OPENBLAS_NUM_THREADS": "1"}
    out = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=place, env=environment, timeout=300
    ).stdout
    before, most = (1024 * int(each) for each in out.split())
    return {"m": m, "before": before, "most": most}


def main() -> None:
    options = arguments(__doc__, write=False)
    found = {"python": platform.python_version(), "plain": installed()}
    print(json.dumps(found, indent=1))
    if options.write:
        keep(PERFORMANCE, installation=found)


if __name__ == "__main__":
    main()
