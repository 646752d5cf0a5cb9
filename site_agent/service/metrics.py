"""An agent's metrics for Prometheus, collected at each scrape: counters, the ledger, pending approvals.

They contain no rows, labels, features or names of studies.
"""

import datetime as dt
import shutil
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector

from site_agent.ledger import Ledger
from site_agent.service.daemon import AgentDaemon
from site_agent.service.state_dir import StateDir

PARTS = ("plan", "question", "end")


class AgentMetrics(Collector):
    """See the module's docstring."""

    def __init__(self, service: AgentDaemon, ledger: Ledger, state: StateDir):
        self._service, self._ledger, self._state = service, ledger, state

    def registry(self) -> CollectorRegistry:
        made = CollectorRegistry()
        made.register(self)
        return made

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily | SummaryMetricFamily]:
        service, counters = self._service, self._service.counters
        yield _gauge(
            "connected", "1 while the session with the coordinator is open", service.connected_since is not None
        )
        yield _gauge("runs_under_way", "Runs that this site takes part in", len(service.agent.runs))
        yield _gauge("approvals_waiting", "Plans that wait for the operator", len(self._state.pending()))
        problems = len(service.workers.tables.troubles) + len(service.unresolved)
        yield _gauge("problems", "Problems that `coreg-agent status` lists, such as an unusable data set", problems)
        yield _gauge("ledger_bytes", "Size of the ledger", self._ledger.path.stat().st_size)
        yield _gauge(
            "ledger_free_bytes", "Free space on the ledger's disk", shutil.disk_usage(self._ledger.path.parent).free
        )
        if service.certificate_until is not None:
            until = dt.datetime.fromisoformat(service.certificate_until).timestamp()
            yield _gauge("certificate_not_after_seconds", "Expiry of the certificate, in seconds since 1970", until)
        yield CounterMetricFamily("coreg_agent_sessions", "Sessions that the coordinator accepted", counters.sessions)
        yield CounterMetricFamily("coreg_agent_refusals", "Plans that this site did not accept", counters.refusals)
        spent = SummaryMetricFamily("coreg_agent_seconds", "Time by part: plan, question, end", labels=["part"])
        for part in PARTS:
            spent.add_metric([part], counters.times[part], counters.seconds.get(part, 0.0))
        yield spent
        yield _counter("bytes", "Frames on the wire", "direction", {d: counters.bytes[d] for d in ("sent", "received")})
        yield _counter("runs_over", "Runs that ended here", "stop", dict(counters.ended))
        sent = dict(self._ledger.sent)
        yield _counter("messages", "Messages that left, by kind", "kind", {k: d.messages for k, d in sent.items()})
        yield _counter(
            "numbers", "Numbers in them that depend on the table", "kind", {k: d.numbers for k, d in sent.items()}
        )


def _gauge(name: str, told: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"coreg_agent_{name}", told, value)


def _counter(name: str, told: str, label: str, values: dict[str, int]) -> CounterMetricFamily:
    made = CounterMetricFamily(f"coreg_agent_{name}", told, labels=[label])
    for key, value in sorted(values.items()):
        made.add_metric([key], value)
    return made
