"""Metrics of a serving coordinator for Prometheus: rounds, seconds, bytes, sessions, refusals,
queue, store.

Labels are names of studies and sites. A run's name is no label, because runs accumulate over
months.
"""

import datetime as dt
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from coordinator.machine.notices import NoticeName
from coordinator.machine.records import Sites
from coreg_core.errors import UsageError
from coreg_core.outcomes import Notice
from coreg_core.plan import aligns_for
from coreg_wire.identity.credentials import is_loopback
from coreg_wire.transport.service import host_port, why_not

_SECONDS = (0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def _own_host_only(app: Any) -> Any:
    """Under another name a page of the web could read the metrics (DNS rebinding)."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if is_loopback(environ.get("HTTP_HOST", "")):
            return app(environ, start_response)
        start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
        return [b"Metrics are read under a loopback address or localhost.\n"]

    return guarded


class Metrics:
    """An observer that counts notices."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._study: dict[str, str] = {}
        self._round: dict[str, int] = {}
        self._unapproved = set[str]()
        self._sites: frozenset[str] | None = None  # those of the list, once it is known

        ours: Any = {"namespace": "coreg", "registry": self.registry}
        self._rounds = Counter("rounds", "Complete rounds, sweeps included", ["study"], **ours)
        self._seconds = Histogram(
            "step_seconds",
            "Seconds from a step to its last answer, by phase",
            ["study", "phase"],
            buckets=_SECONDS,
            **ours,
        )
        self._bytes = Counter("bytes", "Frames on the wire", ["direction"], **ours)
        self._over = Counter("runs_finished", "Runs finished", ["study", "stop"], **ours)
        self._stalled = Counter(
            "stalls", "Times that a run waited for missing sites", ["study"], **ours
        )
        self._connected = Gauge(
            "site_connected", "1 while the site's session is open", ["site"], **ours
        )
        self._until = Gauge(
            "site_certificate_not_after_seconds", "A site's certificate's end", ["site"], **ours
        )
        self._ends = Gauge(
            "certificate_not_after_seconds",
            "End of the server's and the authority's certificate",
            ["what"],
            **ours,
        )
        self._refused = Counter("refused", "Rejected certificates and sessions", ["what"], **ours)
        for what in ("certificate", "session"):
            self._refused.labels(what)
        self._problems = Gauge("problems", "Files that could not be reloaded", **ours)
        self._runs = Gauge(
            "runs",
            "Runs that are queued, active, or wait for approval by a site's operator",
            ["state"],
            **ours,
        )
        self._runs.labels("awaiting approval").set_function(lambda: len(self._unapproved))
        self._free = Gauge("store_free_bytes", "Free space on the run store's disk", **ours)

    def listen(self, address: str) -> Callable[[], None]:
        """Serve /metrics in a thread, on loopback only; the returned function ends it."""
        host, port = host_port(address, "--metrics")
        if not is_loopback(address):
            raise UsageError(
                f"--metrics {address}: on a loopback address only; let a scraper on this machine"
                " read it."
            )
        try:
            server, thread = start_http_server(port, host, self.registry)
            server.set_app(_own_host_only(server.get_app()))
        except OSError as error:
            raise UsageError(
                f"--metrics {address}: cannot listen there: {why_not(error, port, '--metrics')}"
            ) from None

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end

    # --- what happens -----------------------------------------------------------------------------

    def problems(self, count: int) -> None:
        self._problems.set(count)

    def listed(self, sites: Sites, until: Mapping[str, str] = {}) -> None:
        """Set the listed sites and the ends ``until`` of their certificates; an unlisted site has
        no metric.
        """
        [family] = self._connected.collect()
        measured = {sample.labels["site"] for sample in family.samples}
        self._sites = frozenset(sites)
        for site in measured - self._sites:
            self._connected.remove(site)
            with suppress(KeyError):  # it never connected
                self._until.remove(site)
        for site in sites:
            self._connected.labels(site)
        for site in self._sites & until.keys():
            self._set_expiry(site, until[site])

    def certificates(self, ends: Mapping[str, float]) -> None:
        for what, end in ends.items():
            self._ends.labels(what).set(end)

    def stock(self, waiting: int, active: int, store: Path) -> None:
        self._runs.labels("queued").set(waiting)
        self._runs.labels("active").set(active)
        self._free.set(shutil.disk_usage(store.parent).free)

    def notice(self, notice: Notice) -> None:
        run = notice.run
        site = notice.site
        match notice.name:
            case NoticeName.RUN_BEGAN:
                study = notice.fields["study"]
                self._study[run] = study
                self._stalled.labels(study)  # without an initial value, its first increase is lost
            case NoticeName.APPROVAL_AWAITED:
                self._unapproved.add(run)
            case NoticeName.ROUND:
                self._step_answered(run, notice.fields)
            case NoticeName.RUN_ENDED:
                self._run_ended(run, notice.fields["outcome"])
            case NoticeName.STALLED:
                self._stalled.labels(self._study.get(run, "")).inc()
            case NoticeName.SESSION_OPENED:
                self._connected.labels(site).set(1)
                self._set_expiry(site, notice.fields["until"])
            case NoticeName.SESSION_ENDED:
                self._session_ended(site)
            case NoticeName.ACCESS_DENIED:
                self._refused.labels("certificate").inc()
            case NoticeName.SESSION_REJECTED:
                self._refused.labels("session").inc()
            case _:
                pass

    def _step_answered(self, run: str, fields: Mapping[str, Any]) -> None:
        study = self._study.get(run, "")
        self._unapproved.discard(run)
        self._seconds.labels(study, fields["phase"]).observe(fields["seconds"])
        for direction in ("sent", "received"):
            self._bytes.labels(direction).inc(fields[f"bytes_{direction}"])
        # An interrupted attempt and the next one both count.
        self._rounds.labels(study).inc(max(0, fields["round"] - self._round.get(run, 0)))
        self._round[run] = fields["round"]

    def _run_ended(self, run: str, outcome: str) -> None:
        self._unapproved.discard(run)
        self._round.pop(run, None)
        study = self._study.pop(run, "")
        if not aligns_for(run):
            self._over.labels(study, outcome).inc()

    def _session_ended(self, site: str) -> None:
        # A site that was removed from the list has no metric: an alert on it would never end.
        if self._sites is None or site in self._sites:
            self._connected.labels(site).set(0)

    def _set_expiry(self, site: str, until: str) -> None:
        """Set the end of a site's certificate (ISO 8601; "" if it is not known)."""
        if until:
            self._until.labels(site).set(dt.datetime.fromisoformat(until).timestamp())
