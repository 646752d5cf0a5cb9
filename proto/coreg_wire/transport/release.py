"""Which release of coreg this is, as `Hello` tells it and as commands show it."""

from importlib import metadata


def release() -> str:
    """The distribution's version; empty where coreg runs from its source without being installed."""
    try:
        return metadata.version("coreg-federation")
    except metadata.PackageNotFoundError:
        return ""
