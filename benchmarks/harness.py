"""Shared by the scripts: the command line, files of figures, clocks, memory, and new processes.

Import it before numpy.
"""

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PERFORMANCE = "benchmarks/results/performance.json"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path[:0] = [str(ROOT / folder) for folder in (".", "proto", "tests", "tests/e2e")]


def arguments(about: str | None, **options: Any) -> argparse.Namespace:
    """--NAME for each option: False is a flag, a list takes several values, a type is a positional
    argument.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(name, type=default)
        elif isinstance(default, list):
            parser.add_argument(flag, type=type(default[0]), nargs="+", default=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args()


def show(row: Any) -> Any:
    """Print a value as one line of JSON, at once, and return it."""
    print(json.dumps(row), flush=True)
    return row


def keep(name: str, **found: Any) -> None:
    """Write figures into a JSON file of the repository; its other figures stay."""
    path = ROOT / name
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(known | found, indent=1) + "\n", encoding="utf-8")


def least(
    work: Callable[[], Any], repeats: int = 7, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, Any]:
    """The smallest seconds of several repetitions, and the result of the last one."""
    best = float("inf")
    result = None
    for _ in range(repeats):
        began = clock()
        result = work()
        best = min(best, clock() - began)
    return best, result


def memory(what: str = "VmHWM", process: int | str = "self") -> int:
    """Bytes of a process's memory by the kernel's record: its peak (VmHWM), or now (VmRSS).

    Not ru_maxrss: a child inherits that from its parent.
    """
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def cpu_of(process: int) -> float:
    """User and system seconds of another process (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def apart(measure: Callable[..., Any], *about: Any) -> Any:
    """The result of a function in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, *about).result()


def beside(work: Callable[..., Any], *about: Any) -> multiprocessing.Process:
    """A new process that runs a function in the background."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=about)
    process.start()
    return process


@contextmanager
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="coreg-bench-") as name:
        yield Path(name)


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(": ")[1].strip() for line in lines if "model name" in line]
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpus": os.cpu_count(),
        "processor": (names or [platform.machine()])[0],
        "memory_gib": round(pages / 2**30),
    }
