"""What `coreg-agent status` shows of an agent that serves."""

import os
from typing import TYPE_CHECKING, Any

from coreg_wire.transport.release import release

if TYPE_CHECKING:
    from site_agent.service.daemon import AgentDaemon


def status_of(daemon: "AgentDaemon") -> dict[str, Any]:
    """Its connection, its runs, and what its operator has to mend."""
    runs = daemon.agent.runs.values()
    return {
        "site": daemon.workers.name,
        "release": release(),
        "pid": os.getpid(),
        "connected_since": daemon.connected_since,
        "waiting": daemon.waiting,
        "ended": daemon.ended,
        "certificate_until": daemon.certificate_until,
        "runs": {
            run.plan.run: {"study": run.plan.study, "data": run.plan.data, "doing": run.stage.value} for run in runs
        },
        "troubles": dict(daemon.workers.tables.troubles),
        "unresolved": list(daemon.unresolved.values()),
    }
