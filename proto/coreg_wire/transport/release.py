"""The release of coreg, for `Hello` and for commands."""

from functools import cache
from importlib import metadata


@cache
def release() -> str:
    """The distribution's version; empty if coreg runs from source and is not installed."""
    try:
        return metadata.version("coreg-federation")
    except metadata.PackageNotFoundError:
        return ""
