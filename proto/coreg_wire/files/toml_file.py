"""A TOML file as a dictionary, or the sentence that says what is wrong with it."""

import tomllib
from pathlib import Path
from typing import Any

from coreg_core.errors import UsageError

DEEPEST = 16  # a file of coreg has four levels


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary.

    Raises
    ------
    UsageError
        missing, unreadable, or not TOML (with line and column).
    """
    too_deep = UsageError(f"{path}: nested too deeply to be a file of coreg.")
    try:
        read = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}.") from None
    except RecursionError:
        raise too_deep from None
    if _deeper_than(DEEPEST, read):
        raise too_deep
    return read


def _deeper_than(levels: int, read: dict[str, Any]) -> bool:
    """Asked level by level: dotted keys nest without the reader's recursion, and whoever prints them would recurse."""
    level: list[Any] = [read]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return bool(level)
