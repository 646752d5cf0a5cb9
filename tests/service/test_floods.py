"""What a peer does again and again is counted, and told once a minute."""

from coordinator.machine import notices
from coordinator.service.floods import BURST, Floods


def test_a_flood_is_told_once_a_minute_and_hides_no_other_notice():
    now = [0.0]
    floods = Floods(lambda: now[0])
    denied = notices.access_denied("clinic", "revoked")
    passed = [floods.passes(denied) for _ in range(6_220)]
    assert passed == [True] * BURST + [False] * (6_220 - BURST)
    assert floods.passes(notices.access_denied("lab-1", "revoked")), "another peer's"
    assert floods.passes(notices.session_opened("clinic", "", "")), "another kind"
    assert floods.passes(notices.run_ended("r", notices.Outcome.CONVERGED, "")), "no peer's"
    assert floods.over() == []
    now[0] = 61.0
    [told] = floods.over()
    assert told.name == "repeated"
    assert told.fields == {"times": 6_215, "of": "access_denied"}
    assert told.text == ("6215 more within 60 s like this one: rejected: clinic: revoked")
    assert floods.passes(told), "the summary of a flood is none"
    assert floods.over() == []
    assert floods.passes(denied), "a new minute"


def test_quiet_peers_leave_nothing_behind():
    now = [0.0]
    floods = Floods(lambda: now[0])
    for number in range(1_000):
        now[0] += 1.0
        floods.passes(
            notices.notice(
                notices.NoticeName.ENROLMENT_BUSY, address=f"10.0.{number}.1", of_it=5, of_all=5
            )
        )
        floods.over()
    assert len(floods.seen) <= 60
