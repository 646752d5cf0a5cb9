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
from coordinator.machine.records import Record
from coreg_core.protocol.outcomes import Notice
from coreg_wire.terminal.metrics_server import listen

_SECONDS = (0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """An observer that counts notices."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._study: dict[str, str] = {}
        self._round: dict[str, int] = {}
        self._unapproved = set[str]()
        self._sites: frozenset[str] | None = None  # those of the list, once it is known

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"coreg_{name}", meaning, labels, registry=self.registry)

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"coreg_{name}", meaning, labels, registry=self.registry)

        def histogram(name: str, meaning: str, *labels: str) -> Histogram:
            return Histogram(f"coreg_{name}", meaning, labels, buckets=_SECONDS, registry=self.registry)

        self._steps = counter("steps", "Steps answered by every site", "study")
        self._rounds = counter("rounds", "Complete rounds, sweeps included", "study")
        self._seconds = histogram("step_seconds", "Seconds from a step to its last answer, by phase", "study", "phase")
        self._written = histogram("store_seconds", "Writing a record to the run store")
        self._bytes = counter("bytes", "Frames on the wire", "direction")
        self._figures = {
            name: gauge(name, f"{name.title()} of the last verified round, worst column", "study")
            for name in ("residual", "gap")
        }
        self._begun = counter("runs_begun", "Runs begun, or begun again", "study")
        self._over = counter("runs_finished", "Runs finished", "study", "stop")
        self._stalled = counter("stalls", "Times that a run waited for missing sites", "study")
        self._connected = gauge("site_connected", "1 while the site's session is open", "site")
        self._lost = counter("sessions_ended", "Sessions that ended", "site")
        self._until = gauge("site_certificate_not_after_seconds", "A site's certificate's end", "site")
        self._ends = gauge(
            "certificate_not_after_seconds", "End of the server's and the authority's certificate", "what"
        )
        self._refused = counter("refused", "Rejected certificates and sessions", "what")
        for what in ("certificate", "session"):
            self._refused.labels(what)
        self._waiting = gauge("queue_length", "Queued runs")
        self._problems = gauge("problems", "Files that could not be reloaded")
        self._approvals = gauge("approvals_waiting", "Runs that wait for approval by a site's operator")
        self._approvals.set_function(lambda: len(self._unapproved))
        self._active = gauge("runs_under_way", "Active runs")
        self._store = gauge("store_bytes", "Size of the run store and its log")
        self._free = gauge("store_free_bytes", "Free space on the run store's disk")

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

    def stock(self, waiting: int, active: int, store: Path) -> None:
        """Set the gauges of queue, runs and store."""
        self._waiting.set(waiting)
        self._active.set(active)
        beside = (store, store.with_name(store.name + "-wal"))
        self._store.set(sum(path.stat().st_size for path in beside if path.exists()))
        self._free.set(shutil.disk_usage(store.parent).free)

    def notice(self, notice: Notice) -> None:
        run, site, fields = notice.run, notice.site, notice.fields
        study = self._study.get(run, "")
        match notice.name:
            case "run_began":
                self._study[run] = study = fields["study"]
                self._begun.labels(study).inc()
                self._stalled.labels(study)  # a counter without an initial value has no first increase
            case "approval_awaited":
                self._unapproved.add(run)
            case "round":
                self._unapproved.discard(run)
                self._steps.labels(study).inc()
                self._seconds.labels(study, fields["phase"]).observe(fields["seconds"])
                for direction in ("sent", "received"):
                    self._bytes.labels(direction).inc(fields[f"bytes_{direction}"])
                # An interrupted attempt and the next one both count.
                self._rounds.labels(study).inc(max(0, fields["round"] - self._round.get(run, 0)))
                self._round[run] = fields["round"]
                for name, gauge in self._figures.items():
                    if fields["verified"] and fields[name] is not None:
                        gauge.labels(study).set(fields[name])
            case "run_ended":
                self._unapproved.discard(run)
                self._round.pop(run, None)
                self._over.labels(self._study.pop(run, ""), fields["outcome"]).inc()
            case "stalled":
                self._stalled.labels(study).inc()
            case "session_opened":
                self._connected.labels(site).set(1)
                if fields["until"]:
                    self._until.labels(site).set(dt.datetime.fromisoformat(fields["until"]).timestamp())
            case "session_ended":
                # A site that was removed from the list has no metric: an alert on it would never end.
                if self._sites is None or site in self._sites:
                    self._connected.labels(site).set(0)
                self._lost.labels(site).inc()
            case "access_denied":
                self._refused.labels("certificate").inc()
            case "session_rejected":
                self._refused.labels("session").inc()
            case _:
                pass


class _Timed:
    def __init__(self, memory: RecordSink, time: Callable[[], AbstractContextManager[object]]):
        self._memory, self._time = memory, time

    def write(self, run: str, record: Record, measured: Timing, at: str) -> None:
        with self._time():
            self._memory.write(run, record, measured, at)
