"""Metrics of a serving coordinator for Prometheus: rounds, seconds, bytes, gaps, sessions, refusals, queue, store.

Labels are names of studies and sites. A run's name is no label, because runs accumulate over months.
"""

import datetime as dt
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coordinator.driver import RecordSink, Timing
from coordinator.machine import notices as n
from coordinator.machine.records import Record
from coreg_wire.terminal.metrics_server import listen

_SECONDS = (0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """An observer that counts notices."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._study: dict[str, str] = {}
        self._round: dict[str, int] = {}
        study = ["study"]
        self._steps = Counter("coreg_steps", "Steps answered by every site", study, registry=registry)
        self._rounds = Counter("coreg_rounds", "Complete rounds, sweeps included", study, registry=registry)
        self._seconds = Histogram(
            "coreg_step_seconds",
            "Seconds from a step to its last answer, by phase",
            ["study", "phase"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._written = Histogram(
            "coreg_store_seconds", "Writing a record to the run store", buckets=_SECONDS, registry=registry
        )
        self._bytes = Counter("coreg_bytes", "Frames on the wire", ["direction"], registry=registry)
        self._residual = Gauge(
            "coreg_residual", "Residual of the last verified round, worst column", study, registry=registry
        )
        self._gap = Gauge("coreg_gap", "Gap of the last verified round, worst column", study, registry=registry)
        self._begun = Counter("coreg_runs_begun", "Runs begun, or begun again", study, registry=registry)
        self._over = Counter("coreg_runs_finished", "Runs finished", ["study", "stop"], registry=registry)
        self._stalled = Counter("coreg_stalls", "Times that a run waited for missing sites", study, registry=registry)
        self._sites: frozenset[str] | None = None  # those of the list, once it is known
        self._connected = Gauge(
            "coreg_site_connected", "1 while the site's session is open", ["site"], registry=registry
        )
        self._lost = Counter("coreg_sessions_ended", "Sessions that ended", ["site"], registry=registry)
        self._until = Gauge(
            "coreg_site_certificate_not_after_seconds", "A site's certificate's end", ["site"], registry=registry
        )
        self._ends = Gauge(
            "coreg_certificate_not_after_seconds",
            "End of the server's and the authority's certificate",
            ["what"],
            registry=registry,
        )
        self._refused = Counter("coreg_refused", "Rejected certificates and sessions", ["what"], registry=registry)
        for what in ("certificate", "session"):
            self._refused.labels(what)
        self._waiting = Gauge("coreg_queue_length", "Queued runs", registry=registry)
        self._problems = Gauge("coreg_problems", "Files that could not be reloaded", registry=registry)
        self._unapproved = set[str]()
        self._approvals = Gauge(
            "coreg_approvals_waiting", "Runs that wait for approval by a site's operator", registry=registry
        )
        self._approvals.set_function(lambda: len(self._unapproved))
        self._active = Gauge("coreg_runs_under_way", "Active runs", registry=registry)
        self._store = Gauge("coreg_store_bytes", "Size of the run store and its log", registry=registry)
        self._free = Gauge("coreg_store_free_bytes", "Free space on the run store's disk", registry=registry)

    def listen(self, address: str) -> Callable[[], None]:
        return listen(address, self.registry)

    def timed(self, memory: RecordSink) -> RecordSink:
        """The same sink, with the time of each write measured."""
        return _Timed(memory, self._written.time)

    # --- what happens ---------------------------------------------------------------------------------------------

    def problems(self, count: int) -> None:
        """Set the number of files that are not in force."""
        self._problems.set(count)

    def listed(self, sites: tuple[str, ...], until: Mapping[str, str] = {}) -> None:
        """Set the listed sites. A site that never connected counts as disconnected; an unlisted site has no metric.

        ``until``: the ends of certificates, of the run store. A certificate can end while its site is away.
        """
        known = {sample.labels["site"] for family in self._connected.collect() for sample in family.samples}
        self._sites = frozenset(sites)
        for site in known - self._sites:
            self._connected.remove(site)
            with suppress(KeyError):  # it never connected
                self._until.remove(site)
        for site in sites:
            self._connected.labels(site)
            self._lost.labels(site)
        for site in self._sites & until.keys():
            self._until.labels(site).set(dt.datetime.fromisoformat(until[site]).timestamp())

    def certificates(self, ends: Mapping[str, float]) -> None:
        """Set the ends of the coordinator's own certificates."""
        for what, end in ends.items():
            self._ends.labels(what).set(end)

    def began(self, run: str, study: str) -> None:
        """A run started; its notices count under its study from now on."""
        self._study[run] = study
        self._begun.labels(study).inc()
        self._stalled.labels(study)  # a counter without an initial value has no first increase

    def stock(self, waiting: int, active: int, store: Path) -> None:
        """Set the gauges of queue, runs and store."""
        self._waiting.set(waiting)
        self._active.set(active)
        beside = (store, store.with_name(store.name + "-wal"))
        self._store.set(sum(path.stat().st_size for path in beside if path.exists()))
        self._free.set(shutil.disk_usage(store.parent).free)

    def notice(self, notice: n.Notice, measured: Timing) -> None:
        match notice:
            case n.ApprovalAwaited(run=run):
                self._unapproved.add(run)
            case n.StepAnswered(run=run, report=report):
                self._unapproved.discard(run)
                study = self._study.get(run, "")
                self._steps.labels(study).inc()
                self._seconds.labels(study, report.phase).observe(measured.seconds)
                self._bytes.labels("sent").inc(measured.bytes_sent)
                self._bytes.labels("received").inc(measured.bytes_received)
                # An interrupted attempt and the next one both count.
                self._rounds.labels(study).inc(max(0, report.round - self._round.get(run, 0)))
                self._round[run] = report.round
                for gauge, figures in ((self._residual, report.residual), (self._gap, report.gap)):
                    if report.verified and max(figures, default=-1.0) >= 0.0:  # -1 is none
                        gauge.labels(study).set(max(figures))
            case n.RunEnded(run=run, outcome=outcome):
                self._unapproved.discard(run)
                self._round.pop(run, None)
                self._over.labels(self._study.pop(run, ""), outcome.name).inc()
            case n.Stalled(run=run):
                self._stalled.labels(self._study.get(run, "")).inc()
            case n.SessionOpened(site=site, until=until):
                self._connected.labels(site).set(1)
                if until:
                    self._until.labels(site).set(dt.datetime.fromisoformat(until).timestamp())
            case n.SessionEnded(site=site):
                if (
                    self._sites is None or site in self._sites
                ):  # else it was removed from the list, and an alert would never end
                    self._connected.labels(site).set(0)
                self._lost.labels(site).inc()
            case n.AccessDenied():
                self._refused.labels("certificate").inc()
            case n.SessionRejected():
                self._refused.labels("session").inc()
            case _:
                pass


class _Timed:
    def __init__(self, memory: RecordSink, time: Callable[[], AbstractContextManager[object]]):
        self._memory, self._time = memory, time

    def write(self, run: str, record: Record, measured: Timing, at: str) -> None:
        with self._time():
            self._memory.write(run, record, measured, at)
