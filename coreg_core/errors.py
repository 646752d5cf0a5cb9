"""Errors of coreg.

Each class has the exit code of the command that raises it (docs/reference/exit-codes.md).

A message states what happened, where, and what to do; commands print only the message.
"""

from typing import ClassVar


class CoregError(Exception):
    """A failure with a known cause; its text is for the person who can fix it."""

    exit_code: ClassVar[int] = 1


class UsageError(CoregError, ValueError):
    """A parameter, an option or a configuration file is wrong (exit code 2)."""

    exit_code = 2


class Refused(CoregError):
    """A site, a policy or the coordinator refused (exit code 4)."""

    exit_code = 4


class LeftBehind(CoregError):
    """A run continued without this site after a timeout (exit code 5)."""

    exit_code = 5


class BadData(CoregError, ValueError):
    """A table, a file or a message has invalid content (exit code 6)."""

    exit_code = 6


class SingularSystem(BadData):
    """A textbook system has no unique solution in floating point; the message names a
    rank-revealing solver.
    """


class Unreachable(CoregError):
    """The other end does not answer (exit code 7)."""

    exit_code = 7


class StorageError(CoregError):
    """A file or the run store cannot be read or written (exit code 8)."""

    exit_code = 8
