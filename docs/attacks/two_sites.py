"""What two sites can never hide from each other: each is sent z, the mean of two predictions, and knows one of them.

In the clear, which is all that two sites can have: of two masked answers' sum each would know the other's too. From three on
z is a mean of at least two others, and stays that.
"""

import asyncio
from typing import Any

from federation import SITES, data_of, off

from coordinator.driver import NullSink, drive
from coordinator.machine.federation import begin
from coordinator.machine.phases import Timeouts
from coordinator.machine.state import RunState
from coordinator.transports.in_process import InProcess
from coreg_core.protocol.messages import Finished
from coreg_core.protocol.plan import Aggregation, Agreement, Iteration, Membership, Plan, Privacy
from coreg_sim.federation.masks import simulated_keys
from coreg_sim.federation.simulate import Steps
from site_agent.machine.site import Site, Terms


def read_by_a(n_sites: int, answers: Aggregation) -> float:
    """How far site a's guess of b's predictions on the shared instances is off: M z − its own, shared among the others."""
    names = SITES[:n_sites]
    objective = Agreement(form="linear", ridge=0.5, coupling=(0.5,), label_units="raw")
    members, iteration = Membership(names, n_sites), Iteration(tolerance=1e-20, prediction_tolerance=1e-10)
    plan = Plan("run-1", "attacked", members, objective, iteration, Privacy(answers))
    sites = {name: Site(name, data_of(name), Terms(keys=simulated_keys(name))) for name in names}
    told, handle = [], sites["a"].handle

    def listening(message: Any) -> Any:
        if isinstance(message, Finished) and message.targets is not None:
            told.append(message.targets.values[:, 0])
        return handle(message)

    sites["a"].handle = listening  # type: ignore[method-assign]
    asyncio.run(drive(begin(RunState(plan), Timeouts()), InProcess(sites), NullSink(), Steps()))
    results = [sites[name].result for name in names]
    predictions = [r.solutions[0].prediction for r in results if r is not None]
    return off((n_sites * told[-1] - predictions[0]) / (n_sites - 1), predictions[1])


def attack() -> dict[str, Any]:
    """Relative errors."""
    return {"two": read_by_a(2, "plaintext"), "three": read_by_a(3, "secure")}


if __name__ == "__main__":
    print(attack())  # noqa: T201
