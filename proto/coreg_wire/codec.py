r"""Messages to protobuf frames and back, in pairs, with every check that can be made before a message is used.

Knows coreg_core.messages and the generated code; no machine, no socket. A vector travels as raw little-endian doubles,
1 MiB at a time: the first piece inside its message, the rest in Chunk frames. What comes from a peer is checked here
for size, shape, order and finiteness, and the size is checked *before* memory is taken.
"""

from collections.abc import Iterator
from dataclasses import fields
from math import isfinite
from typing import Any, TypeAlias, assert_never, cast, get_args

import numpy as np

from coreg_core.errors import BadData
from coreg_core.messages import (
    Ask,
    Fault,
    Finished,
    Form,
    FromSite,
    Hello,
    Leaving,
    LostPolicy,
    Plan,
    PlanAccepted,
    PlanRefused,
    Prediction,
    Rejected,
    TargetScale,
    ToSite,
    Vector,
)
from coreg_core.rounds import ScheduleName
from coreg_core.rounds.schedule import Stop
from coreg_core.views import BoundRule, Part
from coreg_wire.v1 import federation_pb2 as pb

CHUNK_BYTES = 1 << 20
MAX_COLUMNS = 4096
MAX_TEXT = 10_000  # characters of a reason or a name; longer ones are cut when sent and refused when received
# A frame is one chunk and a head: anything larger is refused by gRPC before it is parsed.
MAX_FRAME_BYTES = CHUNK_BYTES + (1 << 18)

Frame: TypeAlias = pb.SiteFrame | pb.CoordinatorFrame


class ProtocolError(BadData):
    """A peer sent something that its protocol does not allow."""


# --- vectors ------------------------------------------------------------------------------------------------------


def vector_to_frames(vector: Vector) -> tuple[pb.Vector, Iterator[bytes]]:
    """The head with the first MiB, and the pieces that follow; no more than one is copied at a time."""
    data = vector.values.astype("<f8", copy=False).data.cast("B") if vector.values.size else memoryview(b"")
    head = pb.Vector(rows=vector.shape[0], columns=vector.shape[1], data=bytes(data[:CHUNK_BYTES]))
    rest = range(CHUNK_BYTES, len(data), CHUNK_BYTES)
    return head, (bytes(data[start : start + CHUNK_BYTES]) for start in rest)


class _Assembly:
    """A vector on its way: its memory is taken once, after the size was checked, and filled in order."""

    def __init__(self, head: pb.Vector, max_rows: int, max_columns: int):
        if not (0 < head.rows <= max_rows and 0 < head.columns <= max_columns):
            raise ProtocolError(
                f"a vector of {head.rows} x {head.columns} numbers announced; at most {max_rows} x {max_columns} fit."
            )
        self.values = np.empty((head.rows, head.columns), dtype="<f8")
        self._bytes = self.values.data.cast("B")
        self._filled = 0
        self.add(head.data)

    def add(self, data: bytes) -> None:
        end = self._filled + len(data)
        full = end == len(self._bytes)
        if end > len(self._bytes) or (len(data) != CHUNK_BYTES and not full):
            raise ProtocolError(f"a piece of {len(data)} bytes at {self._filled} of a vector of {len(self._bytes)}.")
        self._bytes[self._filled : end] = data
        self._filled = end

    @property
    def complete(self) -> bool:
        return self._filled == len(self._bytes)

    def vector(self) -> Vector:
        vector = Vector(self.values.astype(np.float64, copy=False))
        if not vector.finite:
            raise ProtocolError("a vector holds NaN or infinity.")
        return vector


# --- from a site --------------------------------------------------------------------------------------------------


def site_message_to_frames(message: FromSite) -> Iterator[pb.SiteFrame]:
    """One message, and the chunks of its vector."""
    pieces: Iterator[bytes] = iter(())
    match message:
        case Hello():
            body = pb.FromSite(hello=pb.Hello(**_fields(message)))
        case PlanAccepted():
            body = pb.FromSite(plan_accepted=pb.PlanAccepted(**_fields(message)))
        case PlanRefused():
            body = pb.FromSite(plan_refused=pb.PlanRefused(**_fields(message)))
        case Prediction():
            head, pieces = vector_to_frames(message.values)
            body = pb.FromSite(
                prediction=pb.Prediction(run=message.run, round=message.round, attempt=message.attempt, values=head)
            )
        case Fault():
            body = pb.FromSite(fault=pb.Fault(**_fields(message)))
        case Leaving():
            body = pb.FromSite(leaving=pb.Leaving(**_fields(message)))
        case _:
            assert_never(message)
    yield pb.SiteFrame(message=body)
    for piece in pieces:
        frame = pb.SiteFrame()
        frame.chunk.data = piece  # set in place: a message handed to a constructor is copied once more
        yield frame


def site_message_from_proto(body: pb.FromSite, values: Vector | None) -> FromSite:
    """The inverse; ``values`` is the vector that arrived with it."""
    match body.WhichOneof("body"):
        case "hello":
            h = body.hello
            return Hello(_text(h.site), h.protocol, h.n_unlabelled, _text(h.ids_digest))
        case "plan_accepted":
            a = body.plan_accepted
            return PlanAccepted(
                _text(a.run),
                _text(a.plan_digest),
                _text(a.data_digest),
                _number(a.bound, "bound"),
                _number(a.scale, "scale"),
                a.threads,
            )
        case "plan_refused":
            return PlanRefused(_text(body.plan_refused.run), _text(body.plan_refused.reason))
        case "prediction":
            p = body.prediction
            return Prediction(_text(p.run), p.round, p.attempt, _present(values))
        case "fault":
            f = body.fault
            return Fault(_text(f.run), f.round, f.attempt, _text(f.reason))
        case "leaving":
            return Leaving(_text(body.leaving.reason))
        case _:
            raise ProtocolError("a message of a kind that this version does not know.")


# --- to a site ----------------------------------------------------------------------------------------------------


def coordinator_message_to_frames(message: ToSite) -> Iterator[pb.CoordinatorFrame]:
    """One message, and the chunks of its vector."""
    pieces: Iterator[bytes] = iter(())
    match message:
        case Plan():
            body = pb.ToSite(plan=plan_to_proto(message))
        case Ask():
            head, pieces = vector_to_frames(message.targets)
            ask = pb.Ask(
                run=message.run,
                round=message.round,
                attempt=message.attempt,
                part=message.part,
                weights=message.weights,
                targets=head,
            )
            body = pb.ToSite(ask=ask)
        case Finished():
            finished = pb.Finished(
                run=message.run, stop=message.stop.name, reason=message.reason[:MAX_TEXT], weights=message.weights
            )
            if message.targets is not None:
                head, pieces = vector_to_frames(message.targets)
                finished.targets.CopyFrom(head)
            body = pb.ToSite(finished=finished)
        case Rejected():
            body = pb.ToSite(rejected=pb.Rejected(reason=message.reason[:MAX_TEXT]))
        case _:
            assert_never(message)
    yield pb.CoordinatorFrame(message=body)
    for piece in pieces:
        frame = pb.CoordinatorFrame()
        frame.chunk.data = piece  # set in place: a message handed to a constructor is copied once more
        yield frame


def coordinator_message_from_proto(body: pb.ToSite, targets: Vector | None) -> ToSite:
    """The inverse; ``targets`` is the vector that arrived with it."""
    match body.WhichOneof("body"):
        case "plan":
            return plan_from_proto(body.plan)
        case "ask":
            a = body.ask
            part = cast(Part, _one_of(a.part, Part, "part"))
            weights = tuple(_number(w, "weight") for w in a.weights)
            return Ask(_text(a.run), a.round, a.attempt, part, weights, _present(targets))
        case "finished":
            f = body.finished
            if f.stop not in Stop.__members__:
                raise ProtocolError(f"an unknown stop {f.stop[:40]!r}.")
            weights = tuple(_number(w, "weight") for w in f.weights)
            return Finished(_text(f.run), Stop[f.stop], _text(f.reason), weights, targets)
        case "rejected":
            return Rejected(_text(body.rejected.reason))
        case _:
            raise ProtocolError("a message of a kind that this version does not know.")


def plan_to_proto(plan: Plan) -> pb.Plan:
    """Field by field; a rule and a number travel in their own fields."""
    values = _fields(plan)
    for name in ("bandwidth", "ridge"):
        value = values[name]
        values[name] = pb.RuleOrValue(rule=value) if isinstance(value, str) else pb.RuleOrValue(value=value)
    return pb.Plan(**values)


def plan_from_proto(p: pb.Plan) -> Plan:
    """The inverse; words that this version does not know are refused."""
    return Plan(
        run=_text(p.run),
        federation=_text(p.federation),
        sites=tuple(_text(s) for s in p.sites),
        min_sites=p.min_sites,
        on_lost=cast(LostPolicy, _one_of(p.on_lost, LostPolicy, "on_lost")),
        form=cast(Form, _one_of(p.form, Form, "form")),
        kernel=_text(p.kernel),
        bandwidth=_rule_or_value(p.bandwidth, "bandwidth"),
        ridge=_rule_or_value(p.ridge, "ridge"),
        degree=p.degree,
        offset=_number(p.offset, "offset"),
        landmarks=p.landmarks,
        seed=p.seed,
        coupling=tuple(_number(c, "coupling") for c in p.coupling),
        schedule=cast(ScheduleName, _one_of(p.schedule, ScheduleName, "schedule")),
        tolerance=_number(p.tolerance, "tolerance"),
        prediction_tolerance=_number(p.prediction_tolerance, "prediction_tolerance"),
        max_rounds=p.max_rounds,
        target=cast(TargetScale, _one_of(p.target, TargetScale, "target")),
        bound=cast(BoundRule, _one_of(p.bound, BoundRule, "bound")),
        threads=p.threads,
    )


# --- streams ------------------------------------------------------------------------------------------------------


class Assembler:
    """Frames in, whole messages out: one an open stream.

    ``max_rows`` and ``max_columns`` are what a vector may announce; whoever learns m and k narrows them.
    """

    def __init__(self, max_rows: int, max_columns: int = MAX_COLUMNS):
        self.max_rows, self.max_columns = max_rows, max_columns
        self._body: Any = None
        self._assembly: _Assembly | None = None

    def feed_site(self, frame: pb.SiteFrame) -> FromSite | None:
        """A frame from a site; the message, when it is whole."""
        body = self._feed(frame)
        return None if body is None else site_message_from_proto(body, self._take())

    def feed_coordinator(self, frame: pb.CoordinatorFrame) -> ToSite | None:
        """A frame from the coordinator; the message, when it is whole."""
        body = self._feed(frame)
        return None if body is None else coordinator_message_from_proto(body, self._take())

    def _feed(self, frame: Frame) -> Any:
        match frame.WhichOneof("content"):
            case "message":
                if self._assembly is not None:
                    raise ProtocolError("a new message before the last one's vector was complete.")
                self._body = frame.message
                head = _vector_of(frame.message)
                if head is not None:
                    self._assembly = _Assembly(head, self.max_rows, self.max_columns)
            case "chunk":
                if self._assembly is None or self._assembly.complete:
                    raise ProtocolError("a chunk that belongs to no vector.")
                self._assembly.add(frame.chunk.data)
            case _:
                raise ProtocolError("an empty frame.")
        return None if self._assembly is not None and not self._assembly.complete else self._body

    def _take(self) -> Vector | None:
        assembly, self._assembly, self._body = self._assembly, None, None
        return None if assembly is None else assembly.vector()


def _vector_of(body: pb.FromSite | pb.ToSite) -> pb.Vector | None:
    kind = body.WhichOneof("body")
    match kind:
        case "prediction" | "ask":
            return cast(pb.Vector, body.prediction.values if kind == "prediction" else body.ask.targets)  # type: ignore[union-attr]
        case "finished" if body.finished.HasField("targets"):  # type: ignore[union-attr]
            return cast(pb.Vector, body.finished.targets)  # type: ignore[union-attr]
        case _:
            return None


# --- checks -------------------------------------------------------------------------------------------------------


def _fields(message: Any) -> dict[str, Any]:
    return {
        f.name: value[:MAX_TEXT] if f.name == "reason" else value
        for f in fields(message)
        for value in [getattr(message, f.name)]
    }


def _text(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ProtocolError(f"a text of {len(text)} characters; at most {MAX_TEXT}.")
    # What a peer wrote ends in a terminal: control characters would let it move the cursor there.
    return "".join(c if c.isprintable() else " " for c in text)


def _number(value: float, name: str) -> float:
    if not isfinite(value):
        raise ProtocolError(f"{name} is {value}.")
    return value


def _one_of(word: str, words: Any, name: str) -> str:
    if word not in get_args(words):
        raise ProtocolError(f"{name} is {word[:40]!r}, which this version does not know.")
    return word


def _rule_or_value(message: pb.RuleOrValue, name: str) -> str | float:
    match message.WhichOneof("kind"):
        case "rule":
            return _text(message.rule)
        case "value":
            return _number(message.value, name)
        case _:
            raise ProtocolError(f"{name} is missing.")


def _present(vector: Vector | None) -> Vector:
    if vector is None:
        raise ProtocolError("a message without its vector.")
    return vector
