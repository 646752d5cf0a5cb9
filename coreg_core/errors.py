"""What can go wrong, named once. Each class carries the exit code that a command ends with (docs/reference/exit-codes.md).

A message says who, what, where and what to do next; commands print it and nothing else.
"""

from importlib import import_module
from typing import ClassVar

import numpy as np


class CoregError(Exception):
    """A failure that coreg understands; its text is written for the person who can mend it."""

    exit_code: ClassVar[int] = 1


class UsageError(CoregError, ValueError):
    """A parameter, an option or a configuration file is wrong (exit code 2)."""

    exit_code = 2


class NotInstalled(UsageError, ImportError):
    """A package that only an extra of this installation brings is not there (exit code 2)."""


class Refused(CoregError):
    """Somebody with the right to say no said no (exit code 4)."""

    exit_code = 4


class LeftBehind(CoregError):
    """A run went on without this site, because it was not there in time (exit code 5)."""

    exit_code = 5


class BadData(CoregError, ValueError):
    """A table, a file or a message holds something that cannot be used (exit code 6)."""

    exit_code = 6


class SingularSystem(BadData, np.linalg.LinAlgError):
    """A textbook system has no unique solution in floating point; a rank-revealing solver is named instead."""


class Unreachable(CoregError):
    """Nobody answers at the other end (exit code 7)."""

    exit_code = 7


class StorageError(CoregError):
    """A file or the run store cannot be read or written (exit code 8)."""

    exit_code = 8


def require_scikit_learn(who: str) -> None:
    """Return where scikit-learn is installed.

    Parameters
    ----------
    who
        what needs it; begins the sentence.

    Raises
    ------
    NotInstalled
        scikit-learn is not installed; the message names the extra.
    """
    try:
        import_module("sklearn")
    except ModuleNotFoundError as error:
        if error.name != "sklearn":
            raise
        raise NotInstalled(f"{who} needs scikit-learn: pip install 'coreg-federation[estimators]'.") from None
