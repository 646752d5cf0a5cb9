"""Frames: what goes in comes out; what is too much is refused before memory is taken; false frames
and noise are refused.
"""

import contextlib
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire.frames import (
    PIECE,
    REPOSITORY,
    Made,
    answered,
    expecting,
    from_site,
    from_site_frames,
    of_coordinator,
    of_site,
    plans,
    to_site,
    to_site_frames,
)

from coreg_core import messages as m
from coreg_core.messages import (
    PROTOCOL_VERSION,
    Answer,
    Dismissed,
    Fault,
    Finished,
    FromSite,
    Leaving,
    Part,
    PlanRefused,
    Proposal,
    Rejected,
    Report,
    Step,
    ToSite,
    Words,
)
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.terms import Membership
from coreg_wire.transport.codec import PIECE_BYTES, Assembler
from coreg_wire.transport.fields import MAX_TEXT, ProtocolError, fill, read, snake
from coreg_wire.transport.service import MAX_FRAME_BYTES
from coreg_wire.v1 import federation_pb2 as pb

# --- the closed list ------------------------------------------------------------------------------


def camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@pytest.mark.parametrize(
    ("frame", "wire", "messages"),
    [(pb.SiteFrame, pb.FromSite, FromSite), (pb.CoordinatorFrame, pb.ToSite, ToSite)],
)
def test_the_wire_carries_these_messages_and_nothing_else(
    frame: Any, wire: Any, messages: Any
) -> None:
    kinds = {message.__name__: message for message in get_args(messages)}
    oneof = wire.DESCRIPTOR.oneofs_by_name["body"].fields
    assert {camel(field.name) for field in oneof} == set(kinds)
    assert [field.name for field in wire.DESCRIPTOR.fields] == [field.name for field in oneof], (
        "nothing beside it"
    )
    for field in oneof:
        assert field.message_type.name == camel(field.name)
        mirrors(field.message_type, kinds[camel(field.name)])
    assert [field.name for field in frame.DESCRIPTOR.fields] == ["message", "chunk"]
    assert [f.name for f in frame.DESCRIPTOR.oneofs_by_name["content"].fields] == [
        "message",
        "chunk",
    ]


def mirrors(wire: Any, kind: Any) -> None:
    """Field for field, parts of parts included: a term that is added to one of the two lists alone
    is found here.
    """
    # An optional scalar is a oneof of itself, whose name begins with "_".
    one_ofs = {
        field.name: one
        for one in wire.oneofs
        for field in one.fields
        if not one.name.startswith("_")
    }
    names = {
        one_ofs[field.name].name if field.name in one_ofs else field.name for field in wire.fields
    }
    hints = get_type_hints(kind)
    assert names == {f.name for f in fields(kind)}, wire.name
    for name, hint in hints.items():
        parts = [
            part for part in (hint, *get_args(hint)) if is_dataclass(part) and part is not Words
        ]
        for part in parts:
            field = wire.fields_by_name[
                snake(part.__name__) if name in wire.oneofs_by_name else name
            ]
            mirrors(field.message_type, part)


def test_the_generated_code_is_what_the_schema_says(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is a development dependency")
    out = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    schema = "coreg_wire/v1/federation.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", *out, schema]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    for name in ("federation_pb2.py", "federation_pb2.pyi"):
        fresh = tmp_path / "coreg_wire/v1" / name
        committed = REPOSITORY / "proto/coreg_wire/v1" / name
        assert fresh.read_text() == committed.read_text(), (
            "run `make proto` and commit what it writes"
        )


# --- round trips ----------------------------------------------------------------------------------


@given(st.lists(from_site, min_size=1, max_size=3), st.lists(to_site, min_size=1, max_size=3))
def test_what_one_side_sends_is_what_the_other_reads(up: list[Made], down: list[Made]) -> None:
    said = [make() for make in up]
    told = [make() for make in down]
    assert from_site_frames(data for message in said for data in of_site(message)) == said
    assert to_site_frames(data for message in told for data in of_coordinator(message)) == told


@given(plans)
def test_a_plan_keeps_its_digest_and_the_digest_leaves_out_the_run(made: Made) -> None:
    plan = made()
    message = pb.Plan()
    fill(message, plan)
    again = read(Plan, pb.Plan.FromString(message.SerializeToString()))
    assert again == plan
    assert again.digest == plan.digest == replace(plan, run="another").digest
    federation = "!"
    if len(plan.federation) < 100:
        federation = f"{plan.federation}!"
    assert plan.digest != replace(plan, federation=federation).digest


@pytest.mark.parametrize("count", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1])
def test_a_message_of_more_than_a_piece_has_its_payload_in_chunks(count: int) -> None:
    message = answered(count)
    frames = of_site(message)
    chunks = 0
    if count > PIECE:
        chunks = -(-8 * count // PIECE_BYTES)
    assert len(frames) == 1 + chunks
    assert all(len(data) <= MAX_FRAME_BYTES for data in frames)
    [back] = from_site_frames(frames, room=8 * count)
    assert back == message
    assert not back.summed.values.flags.writeable


@given(
    st.lists(st.sampled_from([0, 1, 7, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1]), max_size=4)
)
def test_parts_of_any_sizes_arrive_as_they_were(sizes: list[int]) -> None:
    parts = tuple(
        Part("a", name, bytes([i]) * n)
        for i, (name, n) in enumerate(zip("bcde", sizes, strict=False))
    )
    message = Step("r", 0, 3, summed=Words(np.arange(5, dtype="<u8")), parts=parts)
    frames = of_coordinator(message)
    assert all(len(data) <= MAX_FRAME_BYTES for data in frames)
    assert to_site_frames(frames, room=m.payload_size(message)) == [message]


# --- limits ---------------------------------------------------------------------------------------


def announced(size: int, data: bytes = b"", run: str = "r") -> bytes:
    body = pb.Answer(run=run, report=pb.Report(), summed=pb.Payload(size=size, data=data))
    return pb.SiteFrame(message=pb.FromSite(answer=body)).SerializeToString()


def chunk(data: bytes, run: str = "r") -> bytes:
    return pb.SiteFrame(chunk=pb.Chunk(run=run, data=data)).SerializeToString()


@contextlib.contextmanager
def memory_of(most: int = 1 << 20) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [41, 2**60, 2**64 - 1])
def test_a_payload_that_is_too_large_is_refused_before_memory_is_taken(size: int) -> None:
    with memory_of(), pytest.raises(ProtocolError, match=f"{size} bytes for run 'r', where 40 fit"):
        from_site_frames([announced(size)], room=40)


def test_sizes_are_added_over_all_parts() -> None:
    parts = [Part("a", name, bytes(30)) for name in ("b", "c")]
    frames = of_site(Answer("r", 0, 0, Report(), parts=tuple(parts)))
    with pytest.raises(ProtocolError, match="60 bytes for run 'r', where 59 fit"):
        from_site_frames(frames, room=59)


def test_memory_is_taken_for_what_has_arrived() -> None:
    """A payload of 800 MB is announced, as its room allows, and one piece of it sent."""
    with memory_of(4 * PIECE_BYTES):
        from_site_frames([announced(800 * PIECE_BYTES), chunk(WHOLE_PIECE)], room=800 * PIECE_BYTES)


def test_a_large_payload_takes_twice_its_size_for_a_moment() -> None:
    message = answered(8 * PIECE)
    frames = of_site(message)
    with memory_of(18 * PIECE_BYTES):
        assert from_site_frames(frames, room=8 * PIECE_BYTES) == [message]


WHOLE_PIECE = b"\0" * PIECE_BYTES
BEGUN = announced(2 * PIECE_BYTES)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([announced(24, bytes(16))], "another size than it states"),
        ([announced(23, bytes(23))], "23 bytes, which are no whole words"),
        ([chunk(bytes(8))], "belongs to no message"),
        ([BEGUN, chunk(b"")], "a chunk of 0 bytes, where 1048576 are expected"),
        ([BEGUN, chunk(WHOLE_PIECE + bytes(8))], "a chunk of 1048584 bytes"),
        ([BEGUN, chunk(WHOLE_PIECE), chunk(WHOLE_PIECE), chunk(bytes(8))], "belongs to no message"),
        ([BEGUN, announced(8, bytes(8))], "before its last message was complete"),
        ([BEGUN, *of_site(Fault("r", 0, 0, ""))], "before its last message was complete"),
        ([BEGUN, chunk(WHOLE_PIECE, "run-2")], "belongs to no message"),
        ([announced(24, bytes(24), run="run-9")], "24 bytes for run 'run-9', where 0 fit"),
        ([announced(24, bytes(24), run="")], "24 bytes for run '', where 0 fit"),
        ([pb.SiteFrame().SerializeToString()], "an empty frame"),
        (
            [pb.SiteFrame(message=pb.FromSite()).SerializeToString()],
            "a kind that this version does not know",
        ),
        ([b"\xff\xff"], "a frame that is not a protobuf message"),
    ],
)
def test_malformed_payloads_and_frames_are_refused(frames: list[bytes], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        from_site_frames(frames, room=2 * PIECE_BYTES)


# --- runs that share a stream ---------------------------------------------------------------------


@settings(max_examples=50)
@given(st.data())
def test_payloads_of_different_runs_may_interleave_in_any_way(data: st.DataObject) -> None:
    sent = [answered(count, run, n) for n, (run, count) in enumerate(SHARED)]
    under_way = [of_site(message) for message in sent]
    frames: list[bytes] = []
    while any(under_way):
        frames.append(data.draw(st.sampled_from([pieces for pieces in under_way if pieces])).pop(0))
    got = from_site_frames(frames, room=3 * PIECE_BYTES)
    assert sorted(got, key=lambda answer: answer.step) == sent  # type: ignore[union-attr]


SHARED = (("r", 2 * PIECE + 3), ("run-2", 1), ("another-run", 2 * PIECE))


def test_a_sessions_own_messages_do_not_wait_for_payloads() -> None:
    message = answered(PIECE + 1)
    first, *later, last = of_site(message)
    leaving = Leaving("over")
    frames = [first, *later, *of_site(leaving), last]
    assert from_site_frames(frames, room=2 * PIECE_BYTES) == [leaving, message]


def test_each_run_has_the_room_that_its_plan_gives_it() -> None:
    assembler = expecting(24, "r")
    assembler.expect("run-2", 40)
    for run, room in (("r", 24), ("run-2", 40)):
        assert assembler.feed_site(announced(room, bytes(room), run)) is not None
        with pytest.raises(ProtocolError, match=f"where {room} fit"):
            assembler.feed_site(announced(room + 8, bytes(room + 8), run))


def test_nothing_is_taken_for_a_run_that_is_over() -> None:
    assembler = expecting(2 * PIECE_BYTES)
    assembler.feed_site(BEGUN)
    assembler.forget("r")
    for frame in (chunk(WHOLE_PIECE), announced(8, bytes(8))):
        with pytest.raises(ProtocolError):
            assembler.feed_site(frame)


@pytest.mark.parametrize("count", [1, 20_000 * 4096])
def test_no_payload_is_taken_before_its_run_is_expected_and_no_memory_either(count: int) -> None:
    data = b""
    if count == 1:
        data = bytes(8)
    body = pb.Step(run="r", summed=pb.Payload(size=8 * count, data=data))
    frame = pb.CoordinatorFrame(message=pb.ToSite(step=body)).SerializeToString()
    with memory_of(), pytest.raises(ProtocolError, match="for run 'r', where 0 fit"):
        Assembler().feed_coordinator(frame)


# --- words, numbers and texts ---------------------------------------------------------------------


def said(**changes: Any) -> bytes:
    """A good answer but for some fields."""
    values: dict[str, Any] = {"run": "r", "report": pb.Report()} | changes
    return pb.SiteFrame(message=pb.FromSite(answer=pb.Answer(**values))).SerializeToString()


def offered(**changes: Any) -> bytes:
    offer = pb.Offer(run="r", site="a", **changes)
    return pb.SiteFrame(message=pb.FromSite(offer=offer)).SerializeToString()


def fetched(**head: Any) -> bytes:
    receipt = pb.Fetched(run="r", head=pb.LedgerHead(**head))
    return pb.SiteFrame(message=pb.FromSite(fetched=receipt)).SerializeToString()


def proposed(**changes: Any) -> bytes:
    message = pb.Plan()
    fill(message, Plan("r", "f", Membership(("a",), 1)))
    proposal = pb.Proposal(run="r", plan=message, **changes)
    return pb.CoordinatorFrame(message=pb.ToSite(proposal=proposal)).SerializeToString()


def greeted(**changes: Any) -> bytes:
    return pb.SiteFrame(
        message=pb.FromSite(hello=pb.Hello(site="a", protocol=5, **changes))
    ).SerializeToString()


def ended(**changes: Any) -> bytes:
    values: dict[str, Any] = {"run": "r", "outcome": "CONVERGED"} | changes
    return pb.CoordinatorFrame(
        message=pb.ToSite(finished=pb.Finished(**values))
    ).SerializeToString()


def planned(part: str = "", **changes: Any) -> bytes:
    """A good plan but for some fields of one of its parts (None: that part, or that field, is
    missing).
    """
    message = pb.Plan()
    fill(message, Plan("r", "f", Membership(("a",), 1), Agreement(bandwidth=2.0, ridge=1.0)))
    if part and not changes:
        message.ClearField(part)  # type: ignore[arg-type]
    mended = message
    if part:
        mended = getattr(message, part)
    for name, value in changes.items():
        mended.ClearField(name)
        if value is not None:
            mended.MergeFrom(type(mended)(**{name: value}))
    return pb.CoordinatorFrame(
        message=pb.ToSite(proposal=pb.Proposal(run="r", plan=message))
    ).SerializeToString()


def scored(columns: int) -> bytes:
    """A plan of a scoring with so many scores of an individual."""
    plan = Plan("r", "f", Membership(("a",), 1), Scoring("s", columns=columns))
    [frame] = of_coordinator(Proposal("r", 0, plan))
    return frame


NAN = float("nan")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (planned("membership"), "membership is missing"),
        (planned("membership", on_dropout="panic"), "on_dropout is 'panic'"),
        (planned("membership", sites=None), "sites has 0 entries"),
        (planned("membership", min_sites=None), "min_sites is 0; at least 1"),
        (planned("agreement", coupling=None), "coupling has 0 entries; 1 to 64 fit"),
        (planned("agreement", coupling=[1.0, float("inf")]), "coupling is inf"),
        (planned("iteration", max_rounds=2**40), "max_rounds is 1099511627776; at most"),
        (scored(columns=0), "columns is 0; at least 1"),
        (scored(columns=21), "columns is 21; at most 20"),
        (planned("agreement", bandwidth=None), "bandwidth is missing"),
        (
            planned("agreement", bandwidth=pb.RuleOrValue(rule="silverman")),
            "bandwidth is 'silverman'",
        ),
        (
            planned("agreement", bandwidth=pb.RuleOrValue(value=0.0)),
            "bandwidth is 0.0; only more than 0",
        ),
        (ended(outcome="VICTORY"), "outcome is 'VICTORY'"),
        (ended(run="r" * (MAX_TEXT + 1)), f"{MAX_TEXT + 1} characters"),
        (ended(run="r" * 64), "which is no run's name"),
        (ended(reason="r" * (MAX_TEXT + 1)), f"{MAX_TEXT + 1} characters"),
        (ended(run="../out"), "which is no run's name"),
        (
            planned("membership", sites=["a", "lab-2\u3164"]),
            "'lab-2.u3164', which is no site's name",
        ),
        (planned("membership", sites=["l\u0430b-2"]), "which is no site's name"),
        (planned("membership", sites=["\u3164"]), "which is no site's name"),
        (planned("membership", sites=["lab-2; 3 sites in all"]), "which is no site's name"),
        (planned("membership", sites=["ca"]), "which is no site's name"),
        (planned(study="a/b"), "which is no study's name"),
        (planned(target="x" * 201), "target has 201 characters; 0 to 200 fit"),
        (
            planned("agreement", bandwidth=pb.RuleOrValue(value=1e300)),
            "bandwidth is 1e.300; at most",
        ),
        (proposed(approval=1e300), "approval is 1e.300; at most"),
        (proposed(keys=["0" * 65]), "keys has 65 characters; 0 to 64 fit"),
        (
            pb.CoordinatorFrame(
                message=pb.ToSite(proposal=pb.Proposal(run="r"))
            ).SerializeToString(),
            "plan is missing",
        ),
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
        (said(report=pb.Report(gap=[NAN])), "gap is nan"),
        (said(parts=10_001 * [pb.Part(sender="a")]), "parts has 10001 entries"),
        (said(parts=[pb.Part(sender="A b")]), "sender is 'A b', which is no site's name"),
        (said(report=pb.Report(round=2**53)), "round is 9007199254740992; at most"),
        (said(report=pb.Report(residual=[1e301])), "residual is 1e.301; at most"),
        (said(report=pb.Report(outcome="x" * 65)), "outcome has 65 characters"),
        (fetched(lines=2**63), "lines is 9223372036854775808; at most"),
        (offered(n_unlabelled=200_000_001), "n_unlabelled is 200000001; at most 200000000"),
        (greeted(runs=65 * ["r"]), "runs has 65 entries; 0 to 64"),
        (offered(signature="0" * 401), "signature has 401 characters; 0 to 400 fit"),
    ],
)
def test_what_a_site_may_not_say(frame: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        from_site_frames([frame])


@given(st.text(max_size=60))
def test_no_control_character_reaches_a_terminal(text: str) -> None:
    [message] = from_site_frames(of_site(Leaving(text.encode("utf-8", "replace").decode())))
    assert isinstance(message, Leaving)
    assert message.reason.isprintable()
    assert len(message.reason) == len(text)


LONG = "x" * 20_000


def test_a_long_reason_is_cut_when_it_is_sent() -> None:
    for said in (PlanRefused("r", LONG), Fault("r", 0, 0, LONG), Leaving(LONG)):
        assert from_site_frames(of_site(said))[0].reason == MAX_TEXT * "x"  # type: ignore[union-attr]
    end = Finished("r", Outcome.STALLED, LONG)
    sent_away = Dismissed("r", Outcome.REFUSED, LONG)
    for told in (Rejected(LONG), end, sent_away):
        assert to_site_frames(of_coordinator(told))[0].reason == MAX_TEXT * "x"  # type: ignore[union-attr]


# --- noise ----------------------------------------------------------------------------------------


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


def read_or_refused(read: Any, frames: list[bytes], kinds: Any) -> None:
    try:
        messages = read(frames)
    except ProtocolError:
        return
    assert all(isinstance(message, kinds) for message in messages)


@settings(max_examples=250)
@given(from_site, to_site, edits)
def test_who_garbles_is_read_or_refused_and_nothing_else(
    up: Made, down: Made, edits: list[Any]
) -> None:
    read_or_refused(from_site_frames, mutated(of_site(up()), edits), FromSite)
    read_or_refused(to_site_frames, mutated(of_coordinator(down()), edits), ToSite)


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_noise_is_read_or_refused_and_nothing_else(frames: list[bytes]) -> None:
    read_or_refused(from_site_frames, frames, FromSite)
    read_or_refused(to_site_frames, frames, ToSite)


def test_the_schema_says_which_protocol_it_is() -> None:
    said = (REPOSITORY / "proto/coreg_wire/v1/federation.proto").read_text(encoding="utf-8")
    assert f"This is protocol {PROTOCOL_VERSION}." in said
