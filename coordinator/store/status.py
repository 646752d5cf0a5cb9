"""The status of the service and of its sites, for other processes: written by the coordinator, read by commands and pages."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from coordinator.store.schema import Tables
from coreg_core.errors import StorageError
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import exclusive

SOON = 30  # days before the end of a certificate


@dataclass(frozen=True)
class SiteStatus:
    """A site's current or last session, the expiry of its certificate, and the reason of its last rejection."""

    site: str
    since: str | None = None
    ended: str | None = None
    release: str = ""
    until: str = ""
    refusal: str | None = None
    refused: str | None = None

    @property
    def connected(self) -> bool:
        """Whether its session was open when the coordinator last wrote."""
        return self.since is not None and self.ended is None

    @property
    def days_left(self) -> int | None:
        """Days until its certificate ends; None without a certificate."""
        return (datetime.fromisoformat(self.until) - utc_now()).days if self.until else None

    @property
    def expiry(self) -> str:
        """A warning if its certificate ends soon."""
        if (days := self.days_left) is None or days >= SOON:
            return ""
        when = f"expires in {days} days" if days >= 0 else "EXPIRED"
        return f"{when}; it is renewed when the site connects, if ca.key is on this machine"

    def seen(self, updated_at: str | None) -> str | None:
        """The time of its last connection if no coordinator runs; None for a site that was never connected.

        A killed coordinator has not written the ends of its sessions. Then the time is that of its last status
        (``updated_at``).
        """
        closed = self.since is None or self.ended is not None
        return self.ended if closed else max(self.since or "", updated_at or "")


class Status(Tables):
    """See the module's docstring. Every method may raise `StorageError`."""

    def opened(self, site: str, release: str, until: str, at: str) -> None:
        """A session opened."""
        self._upsert("since = :at, ended = null, release = :release, until = :until", site, at, release, until)

    def ended(self, site: str, at: str) -> None:
        """A session ended."""
        self._upsert("ended = :at", site, at)

    def rejected(self, site: str, reason: str, at: str) -> None:
        """A site was rejected, or its session was closed."""
        self._upsert("refusal = :reason, refused = :at", site, at, reason=reason)

    def all_ended(self, at: str) -> None:
        """The coordinator starts or ends: no site is connected."""
        with self.transaction(durable=False):
            self._db.execute("update sites set ended = max(coalesce(since, ''), ?) where ended is null", (at,))

    def _upsert(self, changes: str, site: str, at: str, release: str = "", until: str = "", reason: str = "") -> None:
        with self.transaction(durable=False):
            self._db.execute("insert or ignore into sites (site, release, until) values (?, '', '')", (site,))
            self._db.execute(
                f"update sites set {changes} where site = :site",  # noqa: S608 - the three texts above
                {"site": site, "at": at, "release": release, "until": until, "reason": reason},
            )

    def sites(self) -> list[SiteStatus]:
        """Every site that was ever connected or rejected, in site order."""
        with self.reading():
            rows = self._db.execute("select * from sites order by site").fetchall()
            return [SiteStatus(**dict(row)) for row in rows]

    def certificates(self) -> dict[str, str]:
        """The ends of the sites' certificates, as last shown (ISO 8601)."""
        return {each.site: each.until for each in self.sites() if each.until}

    def set_service(self, values: Mapping[str, Any], at: str) -> None:
        """The coordinator's own state: address, start, activity."""
        with self.transaction(durable=False):
            for name, value in {**values, "updated_at": at}.items():
                self._db.execute("insert or replace into service values (?, ?)", (name, json.dumps(value)))

    def service(self) -> dict[str, Any]:
        """The inverse of `set_service`."""
        with self.reading():
            return {row["name"]: json.loads(row["value"]) for row in self._db.execute("select * from service")}


def waits(service: Mapping[str, Any]) -> dict[str, str]:
    """What each run waits for, by its name, from the coordinator's own state."""
    stalled = dict.fromkeys(service.get("parked", ()), "stalled: it goes on when its sites are back")
    return {**stalled, **service.get("waiting", {})}


@contextmanager
def store_of(path: Path) -> Iterator[None]:
    """Hold the run store for this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(path, f"in use by {_holder(path)}. End it first, or give another --store."):
        yield


def _holder(path: Path) -> str:
    with suppress(StorageError):
        status = Status(path, read_only=True)
        known = status.service()
        status.close()
        if "pid" in known:
            return f"the coordinator with process id {known['pid']} on {known['host']}"
    return "another coordinator"
