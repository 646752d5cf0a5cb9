"""Frames: what goes in comes out, what is wrong is refused, and nothing that a peer sends raises anything else."""

import contextlib
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreg_core.additive.model.terms import Additive
from coreg_core.agreement.schedules import SCHEDULE_NAMES
from coreg_core.errors import BadData
from coreg_core.kernels.functions import KernelName
from coreg_core.protocol import messages as m
from coreg_core.protocol.messages import FromSite, ToSite
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import (
    MOST_COLUMNS,
    Aggregation,
    Agreement,
    ConvergenceReport,
    DropoutPolicy,
    Form,
    Iteration,
    LabelUnits,
    Membership,
    Plan,
    Privacy,
    Scoring,
)
from coreg_core.protocol.words import Words
from coreg_wire.transport.chunks import chunk_frames, chunk_of
from coreg_wire.transport.codec import (
    MAX_FRAME_BYTES,
    SMALLEST_PIECE,
    Assembler,
    coordinator_message_to_frames,
    site_message_to_frames,
)
from coreg_wire.transport.fields import MAX_TEXT, ProtocolError, fill, read, snake
from coreg_wire.v1 import federation_pb2 as pb

REPOSITORY = Path(__file__).parents[2]
PIECE = SMALLEST_PIECE // 8
Made = Callable[[], Any]

texts = st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), max_size=40)
# Runs that the assemblers of these tests expect; other vectors are refused, which has tests of its own.
RUNS = ("r", "run-2", "another run")
runs = st.sampled_from(RUNS)
finite = st.floats(allow_nan=False, allow_infinity=False)
not_negative = st.floats(0.0, allow_infinity=False, allow_nan=False).map(abs)  # -0.0 is at least 0, and another number
positive = st.floats(0.0, exclude_min=True, allow_infinity=False, allow_nan=False)
uint31, uint32, uint64 = st.integers(0, 2**31 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
counts = st.integers(1, 2**31 - 1)
few_numbers = st.lists(finite, max_size=4).map(tuple)


def made_later(message: type, *args: Any, **kwargs: Any) -> st.SearchStrategy[Any]:
    """A message that the test makes by calling: beartype looks at a random entry of a tuple, and hypothesis forbids
    that while it draws."""
    return st.builds(partial, st.just(message), *args, **kwargs)


words = st.lists(uint64, max_size=40).map(lambda values: Words(np.array(values, dtype="<u8")))


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3).map(tuple)


agreements = made_later(
    Agreement,
    form=st.sampled_from(get_args(Form)),
    kernel=st.sampled_from(get_args(KernelName)),
    bandwidth=st.sampled_from(["paper", "median", "loo"]) | positive,
    ridge=st.sampled_from(["paper", "loo"]) | positive,
    degree=counts,
    offset=not_negative,
    landmarks=counts,
    seed=uint31,
    coupling=st.lists(not_negative, min_size=1, max_size=MOST_COLUMNS).map(tuple),
    label_units=st.sampled_from(get_args(LabelUnits)),
    relative=st.booleans(),
)
iterations = st.builds(
    Iteration,
    name=st.sampled_from(SCHEDULE_NAMES),
    tolerance=not_negative,
    prediction_tolerance=not_negative,
    max_rounds=counts,
    threads=st.integers(1, 1024),
)
memberships = made_later(
    Membership,
    sites=st.lists(texts, min_size=1, max_size=4).map(tuple),
    min_sites=counts,
    on_dropout=st.sampled_from(get_args(DropoutPolicy)),
    max_rejoins=uint31,
)


def plan(run: str, federation: str, membership: Made, objective: Made, iteration: Iteration, privacy: Privacy) -> Plan:
    return Plan(run, federation, membership(), objective(), iteration, privacy)


positive_finite = st.floats(1e-300, 1e300)
additives = made_later(
    Additive,
    kernel=st.sampled_from(get_args(KernelName)),
    bandwidth=st.just("loo") | positive,
    ridge=st.just("loo") | positive,
    degree=counts,
    offset=not_negative,
    landmarks=counts,
    seed=uint31,
    targets=st.sampled_from(["federation", "raw"]),
    rows=st.just("common"),
    residuals=st.sampled_from(["smoothed", "grouped", "open"]),
    group_size=st.integers(3, 2**31 - 1),
    intercept_prior=positive_finite,
    tuning_steps=st.integers(0, 100),
    probes=st.integers(1, 64),
    tolerance=positive_finite,
    final_tolerance=positive_finite,
    folds=st.integers(2, 100),
    forecast=st.just(False),
    max_rounds=st.integers(2, 2**31 - 1),
    memory=st.integers(1, 2**62),
    operator_norm_bound=positive_finite,
)
scorings = made_later(
    Scoring,
    of_run=texts,
    trained=st.sampled_from(["additive", "agreement"]),
    missing_instances=st.sampled_from(["refuse", "mean"]),
    receivers=some(texts),
    batches=some(texts),
)
plans = st.builds(
    partial,
    st.just(plan),
    runs,
    texts,
    memberships,
    agreements | additives | scorings,
    iterations,
    st.builds(
        Privacy, st.sampled_from(get_args(Aggregation)), st.booleans(), st.sampled_from(get_args(ConvergenceReport))
    ),
)
offers = made_later(
    m.Offer,
    run=runs,
    attempt=uint31,
    plan_digest=texts,
    site=texts,
    n_unlabelled=uint64,
    ids_digest=texts,
    data_digest=texts,
    key=texts,
    session_key=texts,
    commitment=texts,
    resume=some(st.builds(m.Resume, uint64, texts)),
    machine=texts,
    release=texts,
    identity=texts,
    signature=texts,
)
parts = some(st.builds(m.Part, texts, texts))
heads = st.builds(m.Head, texts, texts, texts, texts, texts)
levels = st.lists(st.integers(-10_000, 10_000), max_size=4).map(tuple)
reports = made_later(
    m.Report, uint64, texts, st.booleans(), levels, few_numbers, few_numbers, few_numbers, texts, texts
)
ledger_heads = st.builds(m.LedgerHead, uint64, texts, texts)


def answer(report: Made, **values: Any) -> m.Answer:
    return m.Answer(report=report(), **values)


def step(roster: list[Made], **values: Any) -> m.Step:
    return m.Step(roster=tuple(offer() for offer in roster), **values)


def proposal(run: str, attempt: int, plan: Made, approval: float) -> m.Proposal:
    return m.Proposal(run, attempt, plan(), approval)


FROM_SITE: dict[type, st.SearchStrategy[Any]] = {
    m.Hello: made_later(m.Hello, texts, uint31, texts),
    m.Offer: offers,
    m.PlanRefused: made_later(m.PlanRefused, runs, texts),
    m.Approval: made_later(m.Approval, runs, st.booleans()),
    m.Answer: made_later(
        answer,  # type: ignore[arg-type]
        run=runs,
        attempt=uint31,
        step=uint64,
        head=heads,
        report=reports,
        parts=parts,
        words=st.none() | words,
    ),
    m.Fault: made_later(m.Fault, runs, uint31, uint64, texts),
    m.Fetched: made_later(m.Fetched, runs, ledger_heads, texts),
    m.Leaving: made_later(m.Leaving, texts),
}
TO_SITE: dict[type, st.SearchStrategy[Any]] = {
    m.Proposal: made_later(proposal, runs, uint31, plans, st.floats(0.0, 1e9)),  # type: ignore[arg-type]
    m.Step: made_later(
        step,  # type: ignore[arg-type]
        run=runs,
        attempt=uint31,
        step=uint64,
        roster=st.lists(offers, max_size=3),
        parts=parts,
        heads=some(heads),
        words=st.none() | words,
    ),
    m.Finished: made_later(m.Finished, runs, st.sampled_from(Outcome), texts, some(heads)),
    m.Countersigned: made_later(m.Countersigned, runs, ledger_heads, texts, texts, texts, texts),
    m.Dismissed: made_later(m.Dismissed, runs, st.sampled_from(Outcome), texts),
    m.Rejected: made_later(m.Rejected, texts, st.booleans()),
}
from_site, to_site = st.one_of(FROM_SITE.values()), st.one_of(TO_SITE.values())


def answered(count: int, run: str = "r", number: int = 0) -> m.Answer:
    """An answer of so many words."""
    values = np.random.default_rng(count).integers(0, 2**64, size=count, dtype="<u8")
    return m.Answer(run, 0, number, m.Head("a", "", "", "", ""), m.Report(), words=Words(values))


def expecting(room: int, *expected: str) -> Assembler:
    assembler = Assembler()
    for run in expected or RUNS:
        assembler.expect(run, room)
    return assembler


def from_site_frames(frames: Iterable[bytes], room: int = 40) -> list[FromSite]:
    assembler = expecting(room)
    whole = [assembler.feed_site(data) for data in frames]
    return [message for message in whole if message is not None]


def to_site_frames(frames: Iterable[bytes], room: int = 40) -> list[ToSite]:
    assembler = expecting(room)
    whole = [assembler.feed_coordinator(data) for data in frames]
    return [message for message in whole if message is not None]


def of_site(message: FromSite) -> list[bytes]:
    return list(site_message_to_frames(message))


def of_coordinator(message: ToSite) -> list[bytes]:
    return list(coordinator_message_to_frames(message))


# --- the closed list ----------------------------------------------------------------------------------------------


def camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


@pytest.mark.parametrize(("wire", "messages"), [(pb.FromSite, FromSite), (pb.ToSite, ToSite)])
def test_the_wire_carries_these_messages_and_nothing_else(wire: Any, messages: Any) -> None:
    kinds = {message.__name__: message for message in get_args(messages)}
    oneof = wire.DESCRIPTOR.oneofs_by_name["body"].fields
    assert {camel(field.name) for field in oneof} == set(kinds)
    assert [field.name for field in wire.DESCRIPTOR.fields] == [field.name for field in oneof], "nothing beside it"
    for field in oneof:
        assert field.message_type.name == camel(field.name)
        mirrors(field.message_type, kinds[camel(field.name)])


def mirrors(wire: Any, kind: Any) -> None:
    """Field for field, parts of parts included: a term that is added to one of the two lists alone is found here."""
    # An optional scalar is a oneof of itself, whose name begins with "_".
    one_ofs = {field.name: one for one in wire.oneofs for field in one.fields if not one.name.startswith("_")}
    names = {one_ofs[field.name].name if field.name in one_ofs else field.name for field in wire.fields}
    hints = get_type_hints(kind)
    assert names == {f.name for f in fields(kind)}, wire.name
    for name, hint in hints.items():
        parts = [part for part in (hint, *get_args(hint)) if is_dataclass(part) and part is not Words]
        for part in parts:
            field = wire.fields_by_name[snake(part.__name__) if name in wire.oneofs_by_name else name]
            mirrors(field.message_type, part)


def test_every_message_has_its_strategy_here() -> None:
    assert set(FROM_SITE) == set(get_args(FromSite))
    assert set(TO_SITE) == set(get_args(ToSite))


@pytest.mark.parametrize("frame", [pb.SiteFrame, pb.CoordinatorFrame])
def test_a_frame_is_a_message_or_a_chunk(frame: Any) -> None:
    assert [field.name for field in frame.DESCRIPTOR.fields] == ["message", "chunk"]
    assert [f.name for f in frame.DESCRIPTOR.oneofs_by_name["content"].fields] == ["message", "chunk"]


def test_the_generated_code_is_what_the_schema_says(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is a development dependency")
    out = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    schema = "coreg_wire/v1/federation.proto"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto", *out, schema]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=60)
    for name in ("federation_pb2.py", "federation_pb2.pyi"):
        fresh, committed = tmp_path / "coreg_wire/v1" / name, REPOSITORY / "proto/coreg_wire/v1" / name
        assert fresh.read_text() == committed.read_text(), "run `make proto` and commit what it writes"


# --- round trips --------------------------------------------------------------------------------------------------


@given(st.lists(from_site, min_size=1, max_size=3))
def test_what_a_site_sends_is_what_the_coordinator_reads(made: list[Made]) -> None:
    messages = [make() for make in made]
    assert from_site_frames(data for message in messages for data in of_site(message)) == messages


@given(st.lists(to_site, min_size=1, max_size=3))
def test_what_the_coordinator_sends_is_what_a_site_reads(made: list[Made]) -> None:
    messages = [make() for make in made]
    assert to_site_frames(data for message in messages for data in of_coordinator(message)) == messages


@given(plans)
def test_a_plan_keeps_its_digest_and_the_digest_leaves_out_the_run(made: Made) -> None:
    plan = made()
    message = pb.Plan()
    fill(message, plan)
    again = read(Plan, pb.Plan.FromString(message.SerializeToString()))
    assert again == plan
    assert again.digest == plan.digest == replace(plan, run="another").digest
    assert plan.digest != replace(plan, federation=plan.federation + "!").digest


@pytest.mark.parametrize("count", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 1])
def test_words_are_cut_at_the_smallest_piece_unless_the_link_is_known(count: int) -> None:
    frames = of_site(message := answered(count))
    assert len(frames) == max(1, -(-8 * count // SMALLEST_PIECE))
    assert all(len(data) <= MAX_FRAME_BYTES for data in frames)
    assert from_site_frames(frames, room=count) == [message]


def test_what_was_read_cannot_be_written_to() -> None:
    [back] = from_site_frames(of_site(answered(3)))
    assert isinstance(back, m.Answer)
    assert back.words is not None
    with pytest.raises(ValueError, match="read-only"):
        back.words.values[0] = 2


def test_words_of_another_byte_order_are_refused() -> None:
    with pytest.raises(BadData, match="a row of uint64"):
        Words(np.zeros(3, dtype=">u8"))


# --- limits -------------------------------------------------------------------------------------------------------


def announced(count: int, data: bytes, run: str = "r") -> bytes:
    body = pb.Answer(run=run, head=pb.Head(), report=pb.Report(), words=pb.Words(count=count, data=data))
    return pb.SiteFrame(message=pb.FromSite(answer=body)).SerializeToString()


def chunk(data: bytes, run: str = "r") -> bytes:
    return pb.SiteFrame(chunk=pb.Chunk(run=run, data=data)).SerializeToString()


@contextlib.contextmanager
def within_a_mebibyte() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("count", [41, 2**60, 2**64 - 1])
def test_words_that_are_too_many_are_refused_before_memory_is_taken(count: int) -> None:
    frame = announced(count, b"")
    with within_a_mebibyte(), pytest.raises(ProtocolError, match=f"{count} words announced; at most 40 fit"):
        from_site_frames([frame])


def test_memory_is_taken_once_and_for_the_words_alone() -> None:
    frames = of_site(message := answered(8 * PIECE))
    tracemalloc.start()
    try:
        assert from_site_frames(frames, room=8 * PIECE) == [message]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * SMALLEST_PIECE, "the words, a frame or two, and nothing of their size beside them"


WHOLE_PIECE = b"\0" * SMALLEST_PIECE
BEGUN = announced(2 * PIECE, WHOLE_PIECE)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([announced(3, bytes(16))], "a piece of 16 bytes at 0 of words of 24"),
        ([announced(3, bytes(23))], "a piece of 23 bytes"),
        ([announced(3, bytes(32))], "a piece of 32 bytes"),
        ([announced(3, b"")], "a piece of 0 bytes"),
        ([announced(3, bytes(24)), chunk(bytes(8))], "belongs to no message"),
        ([chunk(bytes(8))], "belongs to no message"),
        ([BEGUN, chunk(b"")], "a piece of 0 bytes at 131072"),
        ([BEGUN, chunk(WHOLE_PIECE + bytes(8))], "a piece of 131080 bytes"),
        ([BEGUN, chunk(WHOLE_PIECE), chunk(bytes(8))], "belongs to no message"),
        ([BEGUN, announced(1, bytes(8))], "before its last message was complete"),
        ([BEGUN, *of_site(m.Fault("r", 0, 0, ""))], "before its last message was complete"),
        ([BEGUN, chunk(WHOLE_PIECE, "run-2")], "belongs to no message"),
        ([announced(3, bytes(24), run="run-9")], "run 'run-9', whose plan was not accepted here"),
        ([announced(3, bytes(24), run="")], "run '', whose plan was not accepted here"),
        ([pb.SiteFrame().SerializeToString()], "an empty frame"),
        ([pb.SiteFrame(message=pb.FromSite()).SerializeToString()], "a kind that this version does not know"),
        ([b"\xff\xff"], "a frame that is not a protobuf message"),
    ],
)
def test_malformed_words_and_frames_are_refused(frames: list[bytes], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        from_site_frames(frames, room=2 * PIECE)


def test_words_that_never_end_make_no_message() -> None:
    assert from_site_frames(of_site(answered(2 * PIECE + 1))[:-1], room=3 * PIECE) == []


@given(run=st.text(min_size=1, max_size=200), sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=3))
def test_a_chunk_is_the_bytes_that_protobuf_writes(run: str, sizes: list[int]) -> None:
    size = max(sizes)
    data = bytes(range(256)) * (2 * size // 256 + 1)
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    frames = list(chunk_frames(memoryview(data), size, run))
    assert frames == [chunk(piece, run) for piece in pieces]
    assert [chunk_of(frame) for frame in frames] == [(run, piece) for piece in pieces]


@settings(max_examples=300)
@given(data=st.data())
def test_a_chunk_that_is_read_here_is_the_one_that_protobuf_reads(data: st.DataObject) -> None:
    frame = bytearray(chunk(data.draw(st.binary(max_size=300)), data.draw(st.sampled_from(["r", "", "é" * 70]))))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(frame) - 1))
        if data.draw(st.booleans()):
            frame[at] = data.draw(st.integers(0, 255))
        else:
            del frame[at:]
        if not frame:
            break
    if (found := chunk_of(bytes(frame))) is not None:
        piece = pb.SiteFrame.FromString(bytes(frame)).chunk
        assert found == (piece.run, piece.data)


def test_a_chunk_whose_fields_are_in_another_order_is_read_too() -> None:
    first, last = of_site(message := answered(PIECE + 2))
    piece = pb.SiteFrame.FromString(last).chunk
    body = b"\x12\x01r" + b"\x0a" + bytes([len(piece.data)]) + piece.data
    other = b"\x12" + bytes([len(body)]) + body
    assert other != last
    assert chunk_of(other) is None
    assert from_site_frames([first, other], room=2 * PIECE) == [message]


# --- runs that share a stream --------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(st.data())
def test_words_of_different_runs_may_interleave_in_any_way(data: st.DataObject) -> None:
    sent = [answered(count, run, n) for n, (run, count) in enumerate(SHARED)]
    under_way = [of_site(message) for message in sent]
    frames: list[bytes] = []
    while any(under_way):
        frames.append(data.draw(st.sampled_from([pieces for pieces in under_way if pieces])).pop(0))
    got = from_site_frames(frames, room=3 * PIECE)
    assert sorted(got, key=lambda answer: answer.step) == sent  # type: ignore[union-attr]


SHARED = (("r", 2 * PIECE + 3), ("run-2", 1), ("another run", 2 * PIECE))


def test_a_sessions_own_messages_do_not_wait_for_words() -> None:
    first, last = of_site(message := answered(PIECE + 1))
    leaving = m.Leaving("over")
    assert from_site_frames([first, *of_site(leaving), last], room=2 * PIECE) == [leaving, message]


def test_each_run_has_the_room_that_its_plan_gives_it() -> None:
    assembler = expecting(3, "r")
    assembler.expect("run-2", 5)
    for run, room in (("r", 3), ("run-2", 5)):
        assert assembler.feed_site(announced(room, bytes(8 * room), run)) is not None
        with pytest.raises(ProtocolError, match=f"at most {room} fit"):
            assembler.feed_site(announced(room + 1, bytes(8 * room + 8), run))


def test_nothing_is_taken_for_a_run_that_is_over() -> None:
    assembler = expecting(2 * PIECE)
    assembler.feed_site(BEGUN)
    assembler.forget("r")
    for frame in (chunk(WHOLE_PIECE), announced(1, bytes(8))):
        with pytest.raises(ProtocolError):
            assembler.feed_site(frame)


@pytest.mark.parametrize("count", [1, 20_000 * 4096])
def test_no_words_are_taken_before_their_run_is_expected_and_no_memory_either(count: int) -> None:
    body = pb.Step(run="r", words=pb.Words(count=count, data=bytes(min(8 * count, SMALLEST_PIECE))))
    frame = pb.CoordinatorFrame(message=pb.ToSite(step=body)).SerializeToString()
    with within_a_mebibyte(), pytest.raises(ProtocolError, match="run 'r', whose plan was not accepted here"):
        Assembler().feed_coordinator(frame)


# --- words, numbers and texts -------------------------------------------------------------------------------------


def said(**changes: Any) -> bytes:
    """A good answer but for some fields."""
    values: dict[str, Any] = {"run": "r", "head": pb.Head(), "report": pb.Report()} | changes
    return pb.SiteFrame(message=pb.FromSite(answer=pb.Answer(**values))).SerializeToString()


def offered(**changes: Any) -> bytes:
    return pb.SiteFrame(message=pb.FromSite(offer=pb.Offer(run="r", **changes))).SerializeToString()


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
        (planned("agreement"), "objective is of a kind that this version does not know"),
        (planned("iteration"), "iteration is missing"),
        (planned("privacy"), "privacy is missing"),
        (planned("membership", on_dropout="panic"), "on_dropout is 'panic'"),
        (planned("membership", sites=None), "sites has 0 entries"),
        (planned("membership", min_sites=None), "min_sites is 0; at least 1"),
        (planned("agreement", form="Exact"), "form is 'Exact'"),
        (planned("agreement", kernel="rbf"), "kernel is 'rbf'"),
        (planned("iteration", name="newton"), "name is 'newton'"),
        (planned("agreement", label_units="log"), "label_units is 'log'"),
        (planned("privacy", aggregation="trusting"), "aggregation is 'trusting'"),
        (planned("privacy", convergence_report="all"), "convergence_report is 'all'"),
        (planned("agreement", coupling=None), "coupling has 0 entries; 1 to 64 fit"),
        (planned("agreement", coupling=65 * [1.0]), "coupling has 65 entries"),
        (planned("agreement", coupling=[1.0, float("inf")]), "coupling is inf"),
        (planned("agreement", coupling=[-1.0]), "coupling is -1"),
        (planned("iteration", tolerance=NAN), "tolerance is nan"),
        (planned("iteration", prediction_tolerance=NAN), "prediction_tolerance is nan"),
        (planned("iteration", tolerance=-1e-9), "tolerance is -1e-09; at least 0"),
        (planned("iteration", max_rounds=None), "max_rounds is 0; at least 1"),
        (planned("iteration", max_rounds=2**40), "max_rounds is 1099511627776; at most"),
        (planned("iteration", threads=5000), "threads is 5000; at most 1024"),
        (planned("agreement", degree=None), "degree is 0; at least 1"),
        (planned("agreement", offset=NAN), "offset is nan"),
        (planned("agreement", offset=-1.0), "offset is -1"),
        (planned("agreement", bandwidth=None), "bandwidth is missing"),
        (planned("agreement", bandwidth=pb.RuleOrValue()), "bandwidth is missing"),
        (planned("agreement", bandwidth=pb.RuleOrValue(rule="silverman")), "bandwidth is 'silverman'"),
        (planned("agreement", bandwidth=pb.RuleOrValue(value=0.0)), "bandwidth is 0.0; only more than 0"),
        (planned("agreement", ridge=pb.RuleOrValue(rule="median")), "ridge is 'median'"),
        (planned("agreement", ridge=pb.RuleOrValue(value=NAN)), "ridge is nan"),
        (planned("agreement", ridge=pb.RuleOrValue(value=-1.0)), "ridge is -1"),
        (ended(outcome="VICTORY"), "outcome is 'VICTORY'"),
        (ended(outcome=""), "outcome is ''"),
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
        (said(head=None), "head is missing"),
        (said(report=None), "report is missing"),
        (said(attempt=2**31), "attempt is 2147483648; at most"),
        (said(report=pb.Report(level=[10_001])), "level is 10001; at most"),
        (said(report=pb.Report(level=65 * [0])), "level has 65 entries; 0 to 64"),
        (said(report=pb.Report(gap=[NAN])), "gap is nan"),
        (said(report=pb.Report(residual=[float("inf")])), "residual is inf"),
        (said(parts=10_001 * [pb.Part()]), "parts has 10001 entries"),
        (offered(resume=9 * [pb.Resume()]), "resume has 9 entries; 0 to 8"),
        (offered(attempt=2**31), "attempt is 2147483648; at most"),
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


def test_escape_sequences_are_blanked() -> None:
    [message] = from_site_frames(of_site(m.Leaving("\x1b[2Jall is well\r\n\x9b0m‮")))
    assert message == m.Leaving(" [2Jall is well   0m ")


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
