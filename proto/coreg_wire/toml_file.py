"""A TOML file as a dictionary, or the sentence that says what is wrong with it. Knows one format."""

import tomllib
from pathlib import Path
from typing import Any

from coreg_core.errors import UsageError


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary.

    Raises
    ------
    UsageError
        missing, unreadable, or not TOML (with line and column).
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}.") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply to be a file of coreg.") from None
