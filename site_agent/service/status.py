"""What `coreg-agent status` shows of an agent that serves."""

import os
from typing import TYPE_CHECKING, Any

from coreg_wire.transport.release import release
from site_agent.machine.agent import Stage

if TYPE_CHECKING:
    from site_agent.service.daemon import AgentDaemon

FOR_RUNS = "for runs"  # what an idle agent waits for
OWN = (Stage.NEW, Stage.ACTIVE)  # the stages in which a site works, or waits for others


def status_of(daemon: "AgentDaemon") -> dict[str, Any]:
    """Its connection, its runs, and what its operator has to mend."""
    silent = daemon.waiting != FOR_RUNS and daemon.connected_since is not None
    runs = {
        run.plan.run: {
            "study": run.plan.study,
            "data": run.plan.data,
            "doing": f"waiting {daemon.waiting}" if silent and not run.busy and run.stage in OWN else run.stage.value,
        }
        for run in daemon.agent.runs.values()
    }
    return {
        "site": daemon.workers.name,
        "release": release(),
        "pid": os.getpid(),
        "connected_since": daemon.connected_since,
        "waiting": daemon.waiting,
        "ended": daemon.ended,
        "certificate_until": daemon.certificate_until,
        "runs": runs,
        "troubles": dict(daemon.workers.tables.troubles),
        "unresolved": list(daemon.unresolved.values()),
    }
