"""Frames that say what they may not, and noise: refused, and nothing that a peer sends raises anything else."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire.frames import Made, from_site, from_site_frames, of_coordinator, of_site, to_site, to_site_frames

from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.setting import Membership
from coreg_core.protocol import messages as m
from coreg_core.protocol.messages import FromSite, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_wire.transport.fields import MAX_TEXT, ProtocolError, fill
from coreg_wire.v1 import federation_pb2 as pb

# --- words, numbers and texts -------------------------------------------------------------------------------------


def said(**changes: Any) -> bytes:
    """A good answer but for some fields."""
    values: dict[str, Any] = {"run": "r", "report": pb.Report()} | changes
    return pb.SiteFrame(message=pb.FromSite(answer=pb.Answer(**values))).SerializeToString()


def offered(**changes: Any) -> bytes:
    return pb.SiteFrame(message=pb.FromSite(offer=pb.Offer(run="r", **changes))).SerializeToString()


def greeted(**changes: Any) -> bytes:
    return pb.SiteFrame(message=pb.FromSite(hello=pb.Hello(site="a", protocol=5, **changes))).SerializeToString()


def ended(**changes: Any) -> bytes:
    values: dict[str, Any] = {"run": "r", "outcome": "CONVERGED"} | changes
    return pb.CoordinatorFrame(message=pb.ToSite(finished=pb.Finished(**values))).SerializeToString()


def planned(part: str = "", **changes: Any) -> bytes:
    """A good plan but for some fields of one of its parts (None: that part, or that field, is missing)."""
    message = pb.Plan()
    fill(message, Plan("r", "f", Membership(("a",), 1), Agreement(bandwidth=2.0, ridge=1.0)))
    if part and not changes:
        message.ClearField(part)  # type: ignore[arg-type]
    mended = getattr(message, part) if part else message
    for name, value in changes.items():
        mended.ClearField(name)
        if value is not None:
            mended.MergeFrom(type(mended)(**{name: value}))
    return pb.CoordinatorFrame(message=pb.ToSite(proposal=pb.Proposal(run="r", plan=message))).SerializeToString()


def proposed() -> bytes:
    return pb.CoordinatorFrame(message=pb.ToSite(proposal=pb.Proposal(run="r"))).SerializeToString()


NAN = float("nan")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (planned("membership"), "membership is missing"),
        (planned("membership", on_dropout="panic"), "on_dropout is 'panic'"),
        (planned("membership", sites=None), "sites has 0 entries"),
        (planned("membership", min_sites=None), "min_sites is 0; at least 1"),
        (planned("agreement", kernel="rbf"), "kernel is 'rbf'"),
        (planned("agreement", coupling=None), "coupling has 0 entries; 1 to 64 fit"),
        (planned("agreement", coupling=65 * [1.0]), "coupling has 65 entries"),
        (planned("agreement", coupling=[1.0, float("inf")]), "coupling is inf"),
        (planned("iteration", tolerance=NAN), "tolerance is nan"),
        (planned("iteration", max_rounds=None), "max_rounds is 0; at least 1"),
        (planned("iteration", max_rounds=2**40), "max_rounds is 1099511627776; at most"),
        (planned("agreement", bandwidth=None), "bandwidth is missing"),
        (planned("agreement", bandwidth=pb.RuleOrValue(rule="silverman")), "bandwidth is 'silverman'"),
        (planned("agreement", bandwidth=pb.RuleOrValue(value=0.0)), "bandwidth is 0.0; only more than 0"),
        (ended(outcome="VICTORY"), "outcome is 'VICTORY'"),
        (ended(run="r" * (MAX_TEXT + 1)), f"{MAX_TEXT + 1} characters"),
        (proposed(), "plan is missing"),
        (pb.CoordinatorFrame(message=pb.ToSite()).SerializeToString(), "does not know"),
    ],
)
def test_what_the_coordinator_may_not_say(frame: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        to_site_frames([frame])


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (said(report=None), "report is missing"),
        (said(attempt=2**31), "attempt is 2147483648; at most"),
        (said(report=pb.Report(gap=65 * [0.0])), "gap has 65 entries; 0 to 64"),
        (said(report=pb.Report(gap=[NAN])), "gap is nan"),
        (said(parts=10_001 * [pb.Part()]), "parts has 10001 entries"),
        (greeted(runs=65 * ["r"]), "runs has 65 entries; 0 to 64"),
        (offered(signature="0" * (MAX_TEXT + 1)), f"{MAX_TEXT + 1} characters"),
    ],
)
def test_what_a_site_may_not_say(frame: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        from_site_frames([frame])


@given(st.text(max_size=60))
def test_no_control_character_reaches_a_terminal(text: str) -> None:
    [message] = from_site_frames(of_site(m.Leaving(text.encode("utf-8", "replace").decode())))
    assert isinstance(message, m.Leaving)
    assert message.reason.isprintable()
    assert len(message.reason) == len(text)


@pytest.mark.parametrize(
    "message", [m.PlanRefused("r", "x" * 20_000), m.Fault("r", 0, 0, "x" * 20_000), m.Leaving("x" * 20_000)]
)
def test_a_long_reason_is_cut_when_it_is_sent(message: FromSite) -> None:
    [back] = from_site_frames(of_site(message))
    assert back.reason == MAX_TEXT * "x"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "message",
    [
        m.Rejected("x" * 20_000),
        m.Finished("r", Outcome.STALLED, "x" * 20_000),
        m.Dismissed("r", Outcome.REFUSED, "x" * 20_000),
    ],
)
def test_a_long_reason_of_the_coordinator_is_cut_too(message: ToSite) -> None:
    [back] = to_site_frames(of_coordinator(message))
    assert back.reason == MAX_TEXT * "x"  # type: ignore[union-attr]


# --- noise --------------------------------------------------------------------------------------------------------


edits = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "insert", "double", "reverse"]),
        st.integers(0, 3),
        st.integers(0, 400),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=4,
)


def mutated(frames: list[bytes], edits: list[tuple[str, int, int, bytes]]) -> list[bytes]:
    """Some bytes set, cut or put in; some frames doubled, or in another order."""
    mutable = [bytearray(data) for data in frames]
    for kind, which, where, data in edits:
        frame = mutable[which % len(mutable)]
        at = where % (len(frame) + 1)
        match kind:
            case "set":
                frame[at : at + 1] = data[:1]
            case "cut":
                del frame[at : at + len(data)]
            case "insert":
                frame[at:at] = data
            case "double":
                mutable.append(bytearray(frame))
            case _:
                mutable.reverse()
    return [bytes(frame) for frame in mutable]


def from_a_site(frames: list[bytes]) -> None:
    try:
        messages = from_site_frames(frames)
    except ProtocolError:
        return
    assert all(isinstance(message, FromSite) for message in messages)


def from_the_coordinator(frames: list[bytes]) -> None:
    try:
        messages = to_site_frames(frames)
    except ProtocolError:
        return
    assert all(isinstance(message, ToSite) for message in messages)


@settings(max_examples=250)
@given(from_site, edits)
def test_a_site_that_garbles_is_read_or_refused_and_nothing_else(made: Made, edits: list[Any]) -> None:
    from_a_site(mutated(of_site(made()), edits))


@settings(max_examples=250)
@given(to_site, edits)
def test_a_coordinator_that_garbles_is_read_or_refused_and_nothing_else(made: Made, edits: list[Any]) -> None:
    from_the_coordinator(mutated(of_coordinator(made()), edits))


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_noise_is_read_or_refused_and_nothing_else(frames: list[bytes]) -> None:
    from_a_site(frames)
    from_the_coordinator(frames)
