"""The status of the service and of its sites, and its notices: written by the coordinator, read by
commands and pages.

`overview` is all of it as plain values: `coreg-coordinator status --json` prints it, and the page
shows it.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from coordinator.machine.notices import NoticeName
from coordinator.store.runs import RunStore, RunSummary
from coordinator.store.schema import StoreTables, Values
from coreg_core.errors import StorageError
from coreg_core.outcomes import Notice, Outcome, advice
from coreg_core.plan import OBJECTIVES
from coreg_wire.clock import utc_now
from coreg_wire.files.disk import exclusive, is_held, make_private_folder

HEARTBEAT_SECONDS = 5.0  # between two writes of the status
# At most, in an overview.
RUNS = 20
ROWS = 60
NOTICES = 50
MAX_NOTICES = 5000  # older ones are deleted


@dataclass(frozen=True)
class SiteStatus:
    """A site's current or last session, the expiry of its certificate, and the reason of its last
    rejection.
    """

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
        if self.until:
            return (datetime.fromisoformat(self.until) - utc_now()).days
        return None

    def seen(self, updated_at: str | None) -> str | None:
        """The last connection if no coordinator runs, else that of its last status; None: never
        connected.
        """
        closed = self.since is None or self.ended is not None
        if closed:
            return self.ended
        return max(self.since or "", updated_at or "")


class Status(StoreTables):
    """See the module's docstring. Every method may raise `StorageError`."""

    def record(self, noticed: Iterable[tuple[Notice, str, str]]) -> None:
        """Write notices that have a sentence, each with its site ("" if unproved) and time, and
        what they say of sites.
        """
        with self.transaction(durable=False):
            for notice, site, at in noticed:
                fields = notice.fields
                match notice.name:
                    case NoticeName.SESSION_OPENED:
                        self._set(
                            site,
                            since=at,
                            ended=None,
                            release=fields["release"],
                            until=fields["until"],
                        )
                    case NoticeName.SESSION_ENDED:
                        self._set(site, ended=at)
                    case NoticeName.ACCESS_DENIED | NoticeName.SESSION_REJECTED if site:
                        self._set(site, refusal=fields["reason"], refused=at)
                if notice.text:  # answered steps have none: they are in the table of rounds
                    row = (at, json.dumps(notice.to_dict()))
                    self._db.execute("insert into notices (at, notice) values (?, ?)", row)
            oldest = "(select max(number) from notices) - ?"
            self._db.execute(f"delete from notices where number <= {oldest}", (MAX_NOTICES,))  # noqa: S608 - constant

    def _set(self, site: str, **values: str | None) -> None:
        self._db.execute(
            "insert or ignore into sites (site, release, until) values (?, '', '')", (site,)
        )
        changes = ", ".join(f"{name} = ?" for name in values)
        self._db.execute(f"update sites set {changes} where site = ?", (*values.values(), site))  # noqa: S608 - our names

    def notices(self, most: int) -> list[Values]:
        """The latest notices as JSON objects with their time ``at``, newest first."""
        with self.reading():
            query = "select at, notice from notices order by number desc limit ?"
            return [
                {"at": at, **json.loads(notice)}
                for at, notice in self._db.execute(query, (most,)).fetchall()
            ]

    def all_ended(self, at: str) -> None:
        """The coordinator starts or ends: no site is connected."""
        with self.transaction(durable=False):
            self._db.execute(
                "update sites set ended = max(coalesce(since, ''), ?) where ended is null", (at,)
            )

    def sites(self) -> list[SiteStatus]:
        """Every site that was ever connected or rejected, in site order."""
        with self.reading():
            rows = self._db.execute("select * from sites order by site").fetchall()
            return [SiteStatus(**dict(row)) for row in rows]

    def certificates(self) -> dict[str, str]:
        """The ends of the sites' certificates, as last shown (ISO 8601)."""
        return {site.site: site.until for site in self.sites() if site.until}

    def set_service(self, values: Values, at: str) -> None:
        """The coordinator's own state: address, start, activity."""
        with self.transaction(durable=False):
            for name, value in {**values, "updated_at": at}.items():
                self._db.execute(
                    "insert or replace into service values (?, ?)", (name, json.dumps(value))
                )

    def service(self) -> Values:
        """The inverse of `set_service`."""
        with self.reading():
            return {
                row["name"]: json.loads(row["value"])
                for row in self._db.execute("select * from service")
            }


@contextmanager
def store_of(path: Path) -> Iterator[None]:
    """Hold the run store for this process."""
    make_private_folder(path.parent)
    with exclusive(
        path,
        f"in use by {_holder(path)}. End it first, or queue a run there: `coreg-coordinator"
        " submit`.",
    ):
        yield


def _holder(path: Path) -> str:
    with suppress(StorageError):
        status = Status(path, read_only=True)
        service = status.service()
        status.close()
        if "pid" in service:
            return f"the coordinator with process id {service['pid']} on {service['host']}"
    return "another coordinator"


def overview(path: Path) -> Values:
    """Coordinator, sites, queue, studies, notices and runs, the unfinished first, with at most
    `ROWS` rows each.
    """
    with ExitStack() as stack:
        status = stack.enter_context(closing(Status(path, read_only=True)))
        stack.enter_context(status.reading())  # a damaged value is a `StorageError`
        runs = stack.enter_context(closing(RunStore(path, read_only=True)))
        up = is_held(path)
        service = status.service()
        sites = status.sites()
        queued = [
            RunSummary(p.run, p.federation, at, None, None, None, 0, 0, p.to_dict())
            for p, at in runs.waiting()
        ]
        now = service if up else {}
        written = service.get("updated_at")
        recent = _is_recent(written)
        return {
            "not_reloaded": now.get("not_reloaded", ""),
            "ready": now.get("state") == "ready" and recent,
            "state": service.get("state", "never served") if up else "not running",
            "federation": service.get("federation"),
            "listen": now.get("listen"),
            "release": service.get("release"),
            "since": now.get("started"),
            "connected": [site.site for site in sites if up and site.connected],
            "of": service.get("sites", []),
            "runs": now.get("runs", []),
            "stalled": now.get("stalled", []),
            "queued": [run.run for run in queued],
            "waiting": now.get("waiting", {}),
            "certificates": now.get("certificates", []),
            "sites": _sites_now(sites, service, up=up),
            "studies": runs.studies(),
            "latest": [
                *(_run(run, "queued", "It waits for a free place.") for run in queued[:RUNS]),
                *(_begun(runs, run, now, written or "", up=up) for run in runs.recent(RUNS)),
            ],
            "notices": status.notices(NOTICES),
        }


def _is_recent(written: str | None) -> bool:
    """Whether the coordinator wrote its status lately, as a process that still works does."""
    if written is None:
        return False
    age = utc_now() - datetime.fromisoformat(written)
    return age.total_seconds() < 6 * HEARTBEAT_SECONDS


def _sites_now(sites: list[SiteStatus], service: Values, *, up: bool) -> list[Values]:
    """Every listed site and every other that was ever seen, in site order; ``up``: a coordinator
    serves.
    """
    listed = service.get("sites", ())
    by_name = {site.site: site for site in sites}
    awaited = service.get("awaited", {}) if up else {}
    rows = []
    for site in (by_name.get(name) or SiteStatus(name) for name in sorted({*listed, *by_name})):
        here = site.connected and up
        rows.append(
            {
                **asdict(site),
                "connected": here,
                "seen": None if here else site.seen(service.get("updated_at")),
                "listed": site.site in listed,
                "days_left": site.days_left,
                "awaited": [run for run, sites in awaited.items() if site.site in sites],
            }
        )
    return rows


def _begun(runs: RunStore, run: RunSummary, now: Values, written: str, *, up: bool) -> Values:
    phases = runs.phases(run.run)
    # The status is up to 5 s old: after a later step or end, the run no longer waits.
    latest = max([run.ended or "", *(phase["at"] for phase in phases)])
    text = now.get("waiting", {}).get(run.run, "") if latest <= written else ""
    state, text = _state(run, text, stalled=run.run in now.get("stalled", ()), up=up)
    return {
        **_run(run, state, text),
        "phases": phases,
        "convergence": runs.convergence(run.run, ROWS),
    }


def _run(run: RunSummary, state: str, text: str) -> Values:
    asked = OBJECTIVES[run.plan["objective"]["name"]].questions
    discloses = {kind: question.discloses for kind, question in asked.items()}
    study = run.plan["study"] or run.federation
    return {**asdict(run), "study": study, "state": state, "text": text, "discloses": discloses}


def _state(run: RunSummary, text: str, *, stalled: bool, up: bool) -> tuple[str, str]:
    """A label, and a sentence: what the run waits for, or why it ended and what to do."""
    if run.stop is not None:
        outcome = Outcome[run.stop]
        why = run.reason or ("" if outcome.good else outcome.value)
        return run.stop.lower().replace("_", " "), f"{why} {advice(outcome)}".strip()
    if not up:
        return "not running", "No coordinator serves this store. The next one begins the run again."
    if "approval by" in text:
        return "approval pending", text
    if stalled:
        return "stalled", text
    return (
        "running" if not text or (" to answer" in text and "connect" not in text) else "waiting"
    ), text
