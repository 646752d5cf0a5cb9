"""What the scripts that make a page of docs/ from figures share: `--write` it, or `--check` it; a number in print."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path


def count(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def write_or_check(about: str | None, page: Callable[[], str], path: Path) -> None:
    """The command line of tools/NAME.py, which makes docs/NAME.md and nothing else."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true")
    action.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        if path.read_text(encoding="utf-8") != page():
            sys.exit(f"docs/{path.name} is stale: python tools/{path.stem}.py --write")
    else:
        path.write_text(page(), encoding="utf-8")
