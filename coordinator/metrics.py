"""What a coordinator that stands counts, for Prometheus: rounds, seconds, bytes, gaps, sessions, refusals, the queue, the store.

Counts what notices tell, under the names of studies and sites; a run's own name is no label, since there are many over the
months. Knows prometheus-client and notices; listens on loopback alone.
"""

from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from coordinator import notices as n
from coordinator.driver import Lap
from coreg_core.errors import UsageError
from coreg_wire.credentials import is_loopback

_SECONDS = (0.005, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """An observer that counts; see the module's docstring."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._study: dict[str, str] = {}
        study = ["study"]
        self._questions = Counter("coreg_questions", "Questions answered by every site asked", study, registry=registry)
        self._seconds = Histogram(
            "coreg_question_seconds", "From a question to its last answer", study, buckets=_SECONDS, registry=registry
        )
        self._bytes = Counter("coreg_bytes", "Frames on the wire", ["direction"], registry=registry)
        self._gap = Gauge(
            "coreg_gap", "Certified gap of the last verified round, worst column", study, registry=registry
        )
        self._residual = Gauge("coreg_residual", "Residual of the last round, worst column", study, registry=registry)
        self._begun = Counter("coreg_runs_begun", "Runs begun or taken up", study, registry=registry)
        self._over = Counter("coreg_runs_finished", "Runs that came to an end", ["study", "stop"], registry=registry)
        self._stalled = Counter("coreg_stalls", "Times that a run waited for missing sites", study, registry=registry)
        self._connected = Gauge(
            "coreg_site_connected", "1 while the site's session is open", ["site"], registry=registry
        )
        self._lost = Counter("coreg_sessions_ended", "Sessions that ended", ["site"], registry=registry)
        self._refused = Counter("coreg_refused", "Certificates and sessions that were turned away", registry=registry)
        self._waiting = Gauge("coreg_queue_length", "Runs that wait in the queue", registry=registry)
        self._active = Gauge("coreg_runs_under_way", "Runs under way", registry=registry)
        self._store = Gauge("coreg_store_bytes", "Size of the run store and its log", registry=registry)

    def listen(self, address: str) -> Callable[[], None]:
        """Serve /metrics; the returned function ends it.

        Raises
        ------
        UsageError
            not a loopback address, or one that cannot be listened on.
        """
        if not is_loopback(address):
            raise UsageError(f"--metrics {address}: on a loopback address only; let a scraper on this machine read it.")
        host, _, port = address.rpartition(":")
        try:
            server, thread = start_http_server(int(port), host.strip("[]"), self.registry)
        except OSError as error:
            raise UsageError(f"--metrics {address}: cannot listen there ({error.strerror}).") from None

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end

    # --- what happens ---------------------------------------------------------------------------------------------

    def began(self, run: str, study: str) -> None:
        """A run was put in; from here on its notices count under its study."""
        self._study[run] = study
        self._begun.labels(study).inc()

    def ended(self, run: str, stop: str) -> None:
        """A run has finished."""
        self._over.labels(self._study.pop(run, ""), stop).inc()

    def stock(self, waiting: int, active: int, store: Path) -> None:
        """What can be counted at any time."""
        self._waiting.set(waiting)
        self._active.set(active)
        beside = (store, store.with_name(store.name + "-wal"))
        self._store.set(sum(path.stat().st_size for path in beside if path.exists()))

    def notice(self, notice: n.Notice, measured: Lap) -> None:
        """Count it."""
        match notice:
            case n.QuestionAnswered(run=run, progress=progress):
                study = self._study.get(run, "")
                self._questions.labels(study).inc()
                self._seconds.labels(study).observe(measured.seconds)
                self._bytes.labels("sent").inc(measured.bytes_sent)
                self._bytes.labels("received").inc(measured.bytes_received)
                if progress is not None:
                    self._residual.labels(study).set(progress.residual.max())
                    if progress.verified:
                        self._gap.labels(study).set(progress.gap.max())
            case n.Stalled(run=run):
                self._stalled.labels(self._study.get(run, "")).inc()
            case n.SessionOpened(site=site):
                self._connected.labels(site).set(1)
            case n.SessionEnded(site=site):
                self._connected.labels(site).set(0)
                self._lost.labels(site).inc()
            case n.SessionTurnedAway() | n.SessionRejected():
                self._refused.inc()
            case _:
                pass
