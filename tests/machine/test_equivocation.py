"""A member and the coordinator tell two sites different things of one question."""

import pytest
from core.test_exchange import short  # noqa: F401 - the fixture: short secrets, the same sums
from machine.test_additive import LINEAR, plan_of, rows_of
from machine.tiny import Pump, altered, site_with

from coreg_core import messages as m
from coreg_core.objectives.additive import SUMMARY
from coreg_core.outcomes import Outcome
from site_agent.machine.results import AdditiveResult


@pytest.mark.usefixtures("short")
def test_a_summary_that_differs_between_two_sites_opens_nothing():
    """Both texts are sealed under the keys of the run, so each opens. What all sites received is in
    the keys of every later step.
    """
    sites = {name: site_with(name, rows) for name, rows in rows_of("abc").items()}
    liar = sites["a"]
    second = list[bytes]()

    def sealing(_message, answer):
        """Seals another level of the labels beside the honest summary."""
        attempt = liar.attempt
        if isinstance(answer, m.Answer) and answer.report.question == "summary" and not second:
            text = bytearray(attempt.reply.to_all)
            text[SUMMARY] ^= 1  # the last bit of the level
            second.append(attempt.seal.close(attempt.context, bytes(text)))
        return answer

    def carried(site, message):
        if not isinstance(message, m.Step) or site != "c" or not second:
            return message
        parts = tuple(
            m.Part(part.sender, part.receiver, second[0])
            if part.sender == "a" and not part.receiver and len(part.data) == len(second[0])
            else part
            for part in message.parts
        )
        return m.Step(
            message.run, message.attempt, message.step, message.roster, message.summed, parts
        )

    altered(liar, sealing)
    pump = Pump(plan_of(LINEAR), sites, wire=carried).join().run()

    assert second, "the second summary was made"
    if pump.end is not None:
        assert pump.outcome is not Outcome.CONVERGED
    assert not any(isinstance(site.result, AdditiveResult) for site in sites.values())
