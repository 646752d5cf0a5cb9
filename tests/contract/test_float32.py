"""wire = "float32" over either transport, with the agent's own sites: the same bits, and half the bytes of a direction."""

import pytest
from harness import SITES, Wire
from machine.tiny import CLOCKS, make_plan
from test_transports import within  # beside this file

from coordinator.driver import Lap, NoMemory, drive
from coordinator.machine.federation import begin
from coordinator.machine.notices import Notice, QuestionAnswered
from coordinator.machine.state import Recorded
from coordinator.transports import Transport
from coordinator.transports.in_process import InProcess
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_sim.federation.masks import simulated_keys
from coreg_sim.federation.problems import generated
from site_agent.machine.site import Site, Terms

ROWS = 20_000  # in float32 one piece, in float64 two
FRAMES = 6000  # more than what is not numbers, of a roster too


class Weighed:
    """Of each question that was answered: whether it verified, and what went out and came back."""

    def __init__(self) -> None:
        self.laps: list[tuple[bool, int, int]] = []

    def notice(self, notice: Notice, measured: Lap) -> None:
        if isinstance(notice, QuestionAnswered):
            assert notice.progress is not None
            self.laps.append((notice.progress.verified, measured.bytes_sent, measured.bytes_received))


def sites_of(plan: Plan) -> dict[str, Site]:
    made = generated(3, 12, ROWS, 3, seed=4).sites.values()
    return {name: Site(name, data, Terms(keys=simulated_keys(name))) for name, data in zip(SITES, made, strict=True)}


async def ended(transport: Transport, plan: Plan, sites: dict[str, Site], weighed: Weighed) -> list[bytes]:
    end = (await drive(begin(Recorded(plan), CLOCKS), transport, NoMemory(), weighed))[plan.run]
    assert end.outcome is Outcome.CONVERGED
    results = [site.result for site in sites.values()]
    return [solution.prediction.tobytes() for r in results if r is not None for solution in r.solutions]


@pytest.mark.parametrize("answers", ["clear", "sums"])
def test_directions_take_half_the_bytes_and_end_on_the_simulations_bits(wire: Wire, answers: str) -> None:
    plan = make_plan(
        wire="float32", answers=answers, min_sites=3, coupling=(0.1,), tolerance=1e-10, prediction_tolerance=1e-3
    )
    here, there, unseen, weighed = sites_of(plan), sites_of(plan), Weighed(), Weighed()
    expected = within(60, ended(InProcess(here), plan, here, unseen))
    assert within(60, ended(wire(there), plan, there, weighed)) == expected
    assert len(expected) == len(SITES)
    seen = set()
    for verified, sent, received in weighed.laps:
        whole, half = 3 * 8 * ROWS, 3 * 4 * ROWS
        asked, answered = (whole, whole) if verified else (half, half if answers == "clear" else whole)
        assert asked <= sent < asked + FRAMES
        assert answered <= received < answered + FRAMES
        seen.add(verified)
    assert seen == {True, False}
