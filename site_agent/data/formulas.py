"""Ids that a spreadsheet would run: written behind an apostrophe, and read without it.

A cell that begins with = + - @ is a formula to a spreadsheet, and ids come from elsewhere: =HYPERLINK(…) would run at
whoever opens the predictions. Numbers stay as they are. Where an apostrophe stood before such a sign it gets another:
each id comes back.
"""

import re

_RUNS = re.compile(r"'*[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def guarded(text: str) -> str:
    """As it may stand in a CSV file that somebody opens."""
    return f"'{text}" if _RUNS.match(text) and not _NUMBER.fullmatch(text) else text


def unguarded(text: str) -> str:
    return text[1:] if text.startswith("'") and _RUNS.match(text) else text
