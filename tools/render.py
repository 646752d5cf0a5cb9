"""Shared by the documentation generators: tables, generated parts of pages, and the command that
checks or writes files.
"""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "proto")]

PART = re.compile(r"<!-- generated: ([^>]+) -->(\n?)(.*?)<!-- end -->", re.DOTALL)


def table(headings: str, rows: Iterable[str], rule: str = "---") -> str:
    """A Markdown table; its headings and rows are lines."""
    return "\n".join(
        [headings, "|" + f"{rule}|" * headings.strip("|").count("|") + f"{rule}|", *rows]
    )


def row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def count(value: int) -> str:
    return f"{value:,}".replace(",", " ")


def filled(page: Path, parts: Mapping[str, str]) -> str:
    """The page with new text between each `<!-- generated: NAME -->` and `<!-- end -->`, on one
    line or over several.
    """
    found = []

    def made(match: re.Match[str]) -> str:
        name = match[1]
        broken = match[2]
        found.append(name)
        if name not in parts:
            raise SystemExit(f"{page.name}: no generated part {name!r}")
        return f"<!-- generated: {name} -->{broken}{parts[name]}{broken}<!-- end -->"

    out = PART.sub(made, page.read_text(encoding="utf-8"))
    if lacking := sorted(set(parts) - set(found)):
        raise SystemExit(f"{page.name}: no marker for the generated part {lacking[0]!r}")
    return out


def paragraph(words: str, first: str = "", rest: str = "") -> str:
    """Text in lines of at most 100 columns.

    A number is not broken, and its per cent sign stays beside it.
    """
    kept = re.sub(r"(?<=\d) (?=%|\d{3}\b)", "\N{NO-BREAK SPACE}", words)
    lines = textwrap.fill(
        kept, 100, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def main(about: str | None, expected: Callable[[], dict[Path, str]]) -> int:
    """Check or write the expected files, and return the exit code.

    A file with empty text must be absent.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="rewrite stale files")
    what.add_argument("--check", action="store_true", help="exit with code 1 if a file is stale")
    options = parser.parse_args()
    stale = 0
    for path, wanted in expected().items():
        if (path.read_text(encoding="utf-8") if path.exists() else "") == wanted:
            continue
        stale += 1
        name = path.relative_to(ROOT)
        if options.check:
            print(f"stale: {name}; mend it with `make docs`", file=sys.stderr)
        elif wanted:
            path.write_text(wanted, encoding="utf-8")
            print(f"written: {name}")
        else:
            path.unlink()
            print(f"removed: {name}")
    return 1 if stale and options.check else 0
