"""Protect ids that a spreadsheet would run as a formula: an apostrophe is written before them and removed on reading.

A spreadsheet runs a cell that begins with = + - @, for example =HYPERLINK(…), and ids come from outside. Numbers stay as they
are. An id that already has an apostrophe before such a sign gets another, so that every id can be read back.
"""

import re

_RUNS = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def guarded(text: str) -> str:
    """The text for a CSV file."""
    return f"'{text}" if _RUNS.match(text) and not _NUMBER.fullmatch(text) else text


def unguarded(text: str) -> str:
    return text[1:] if text.startswith("'") and _RUNS.match(text) else text
