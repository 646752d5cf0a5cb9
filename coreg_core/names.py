"""Names of sites, studies, data sets and runs: the one rule for all of them.

Certificates, plans and configuration files are read through it. A name becomes a file or a folder,
and a line of a question to an operator. So it has no letter that looks like another one, no
separator, and no character that a terminal does not show.
"""

import re

from coreg_core.errors import UsageError

_NAME = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,61}[a-z0-9])?")
# A site's certificate is NAME.pem in the authority's folder: these two would overwrite its files.
_RESERVED = frozenset({"ca", "coordinator"})


def check_site_name(name: str) -> str:
    """Return `name` if it is a valid name of a site. UsageError: it is not."""
    if name in _RESERVED:
        raise UsageError(
            f"A site cannot have the name {name!r}: the coordinator's own files have it. "
            "Choose another."
        )
    return check_name(name, "site")


def check_name(name: str, what: str) -> str:
    """Return `name` if it is a valid name of ``what`` it names. UsageError: it is not."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!a} is not a valid {what} name: use 1 to 63 of a-z, 0-9, '-', '_' and '.', "
            "with a letter or a digit first and last."
        )
    return name
