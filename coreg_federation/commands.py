"""The console scripts. Before anything is imported, each checks that coreg's packages are its own.

Other distributions on PyPI have modules of the same names (`coordinator` is one). Installed beside coreg, they overwrite
its files without a word.
"""

import sys
from importlib import import_module
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

from coreg_federation import DISTRIBUTION

PACKAGES = ("coordinator", "site_agent", "coreg_core", "coreg_sim", "coreg_wire")
MARK = f'DISTRIBUTION = "{DISTRIBUTION}"'
USAGE = 2  # the exit code of a wrong installation


def intruder() -> str | None:
    """Why a package is not coreg's own; None if all of them are."""
    for name in PACKAGES:
        spec = find_spec(name)
        where = None if spec is None else spec.origin
        if where is None or MARK not in Path(where).read_text(encoding="utf-8"):
            others = [other for other in packages_distributions().get(name, ()) if other != DISTRIBUTION]
            by = f" by {', '.join(others)}" if others else ""
            return (
                f"the package {name!r} ({where or 'not found'}) is not the one of {DISTRIBUTION}: it was installed{by} over it. "
                f"Install {DISTRIBUTION} into a virtual environment of its own:\n"
                f"  python -m venv coreg && coreg/bin/pip install {DISTRIBUTION}"
            )
    return None


def _run(module: str) -> None:
    if (reason := intruder()) is not None:
        sys.stderr.write(f"error: {reason}\n")
        raise SystemExit(USAGE)
    import_module(module).main()


def coordinator() -> None:
    """coreg-coordinator."""
    _run("coordinator.cli.app")


def agent() -> None:
    """coreg-agent."""
    _run("site_agent.cli.app")


def simulation() -> None:
    """coreg-sim."""
    _run("coreg_sim.cli.app")
