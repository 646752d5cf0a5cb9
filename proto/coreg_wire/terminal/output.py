"""Output of values: JSON lines for programs, sizes in bytes for people."""

import json
import sys
from typing import Any


def print_json(value: Any) -> None:
    """Print one JSON value on one line of standard output, and flush it."""
    sys.stdout.write(json.dumps(value, default=str) + "\n")
    sys.stdout.flush()


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError
