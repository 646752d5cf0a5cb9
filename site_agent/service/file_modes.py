"""Who else can change or read what this site's consent and secrets rest on.

Another user who can write the policy decides what this site agrees to. One who can read the salt,
the ledger or the key knows more than a run discloses.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from coreg_core.errors import StorageError
from site_agent.config.settings import AgentSettings
from site_agent.identity.identity import KEY

_READ_BY_OTHERS = 0o044
_WRITTEN_BY_ALL = 0o002


def private_files(settings: AgentSettings) -> list[Path]:
    """Files that exist, and that only this user may read."""
    folder = settings.identity
    secrets = (folder / KEY, folder / "salt", folder / "members.json", settings.ledger_path)
    paths = (settings.policy, *secrets)  # a policy can hold the sites' ids_secret
    return [path for path in paths if path is not None and path.exists()]


def require_own(settings: AgentSettings, more: tuple[Path, ...] = ()) -> list[Path]:
    """The files and folders that exist. StorageError: another user can change one."""
    paths = [*more, settings.identity, *private_files(settings)]
    paths = [path for path in dict.fromkeys(paths) if path.exists()]
    for path in paths:
        status = path.stat()
        if status.st_mode & _WRITTEN_BY_ALL:
            what = f"all users can change {path}, and with it what this site agrees to"
            raise StorageError(f"{what}. Run `chmod o-w {path}`.")
        if status.st_uid not in (os.geteuid(), 0):
            raise StorageError(
                f"{path} belongs to another user, who can change what this site agrees to. If"
                " that is the user of a service, run this command as that user (sudo -u"
                " coreg-agent …). Else change the owner."
            )
    return paths


def readable(settings: AgentSettings) -> Iterator[str]:
    """Warnings of private files that other users can read, with what to do."""
    for path in private_files(settings):
        if path.stat().st_mode & _READ_BY_OTHERS:
            yield f"other users of this machine can read {path}. Run `chmod 600 {path}`"
