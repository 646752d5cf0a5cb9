r"""Messages to protobuf frames and back, with all checks that are possible before a message is
used.

A message carries payloads: words of a sum, and parts. A small message has them in itself. Those of
a larger one follow in Chunk frames of 1 MiB, one payload after another, each with its run, so that
the runs of one stream do not wait for each other.

Frames from a peer are checked for size and order. No memory is granted that was not expected: the
sizes of a message's payloads are compared with the room of its run before any byte is kept, and
what is kept is what arrived.
"""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, TypeAlias, cast, get_args

from coreg_core.messages import Answer, FromSite, Step, ToSite
from coreg_wire.transport.fields import ProtocolError, fill, payloads_of, read, snake
from coreg_wire.v1 import federation_pb2 as pb

PIECE_BYTES = 1 << 20

Frame: TypeAlias = pb.SiteFrame | pb.CoordinatorFrame
_FROM_SITE: dict[str, type[Any]] = {snake(kind.__name__): kind for kind in get_args(FromSite)}
_TO_SITE: dict[str, type[Any]] = {snake(kind.__name__): kind for kind in get_args(ToSite)}
_NAMES = {kind: name for name, kind in (_FROM_SITE | _TO_SITE).items()}


# --- out ----------------------------------------------------------------------------------------


def frames_of(message: FromSite | ToSite) -> Iterator[bytes]:
    """One message, and the chunks of its payloads."""
    name = _NAMES[type(message)]
    frame_type: Any = pb.SiteFrame if name in _FROM_SITE else pb.CoordinatorFrame
    frame = frame_type()
    body = getattr(frame.message, name)
    body.SetInParent()  # otherwise a message without set fields would be absent
    payloads = _payloads(message) if isinstance(message, Answer | Step) else []
    later = sum(map(len, payloads)) > PIECE_BYTES
    fill(body, message, with_payloads=not later)
    yield frame.SerializeToString()
    for payload in payloads if later else ():
        for start in range(0, len(payload), PIECE_BYTES):
            piece = bytes(payload[start : start + PIECE_BYTES])
            yield frame_type(chunk=pb.Chunk(run=body.run, data=piece)).SerializeToString()


def _payloads(message: Answer | Step) -> list[memoryview | bytes]:
    """In the order of `payloads_of`."""
    summed = [] if message.summed is None else [message.summed.data]
    return [*summed, *map(attrgetter("data"), message.parts)]


# --- in -----------------------------------------------------------------------------------------


class _Assembly:
    """An incomplete message: the payloads that arrived, and how much the next one lacks."""

    def __init__(self, body: Any, sizes: list[int]):
        self.body = body
        self._missing = sizes[::-1]  # bytes that each payload lacks, the next one last
        self._pieces: list[bytes] = []
        self._whole: list[bytes] = []
        self._close_full()

    def add(self, data: bytes) -> None:
        expected = min(PIECE_BYTES, self._missing[-1])
        if len(data) != expected:
            raise ProtocolError(f"a chunk of {len(data)} bytes, where {expected} are expected.")
        self._pieces.append(data)
        self._missing[-1] -= expected
        self._close_full()

    def _close_full(self) -> None:
        while self._missing and self._missing[-1] == 0:
            self._missing.pop()
            self._whole.append(b"".join(self._pieces))
            self._pieces = []

    @property
    def complete(self) -> bool:
        return not self._missing

    def payloads(self) -> Iterator[bytes]:
        return iter(self._whole)


class Assembler:
    """Frames in, whole messages out; one for each open stream."""

    def __init__(self) -> None:
        self._room: dict[str, int] = {}
        self._under_way: dict[str, _Assembly] = {}

    def expect(self, run: str, room: int) -> None:
        """From now on, accept messages of the run with at most so many bytes of payload."""
        self._room[run] = room

    def forget(self, run: str) -> None:
        """The run is over: reject its payloads."""
        self._room.pop(run, None)
        self._under_way.pop(run, None)

    def feed_site(self, frame: bytes) -> FromSite | None:
        """Take a frame from a site; return the message if it is complete."""
        return cast("FromSite | None", self._feed(frame, pb.SiteFrame, _FROM_SITE))

    def feed_coordinator(self, frame: bytes) -> ToSite | None:
        """Take a frame from the coordinator; return the message if it is complete."""
        return cast("ToSite | None", self._feed(frame, pb.CoordinatorFrame, _TO_SITE))

    def _feed(self, data: bytes, frame_type: type[Frame], kinds: dict[str, type[Any]]) -> object:
        try:
            frame = frame_type.FromString(data)
        except Exception as error:  # noqa: BLE001 - protobuf raises several kinds
            what = type(error).__name__
            raise ProtocolError(f"a frame that is not a protobuf message ({what}).") from None
        match frame.WhichOneof("content"):
            case "message":
                return self._message(frame.message, kinds)
            case "chunk":
                return self._piece(frame.chunk.run, frame.chunk.data, kinds)
            case _:
                raise ProtocolError("an empty frame.")

    def _piece(self, run: str, data: bytes, kinds: dict[str, type[Any]]) -> object:
        assembly = self._under_way.get(run)
        if assembly is None:
            raise ProtocolError("a chunk that belongs to no message.")
        assembly.add(data)
        return self._if_complete(run, assembly, kinds)

    def _message(self, body: pb.FromSite | pb.ToSite, kinds: dict[str, type[Any]]) -> object:
        name = body.WhichOneof("body")
        if name is None or name not in kinds:
            raise ProtocolError("a message of a kind that this version does not know.")
        part = getattr(body, name)
        run = part.run if "run" in part.DESCRIPTOR.fields_by_name else ""
        if run in self._under_way:
            raise ProtocolError("a new message of a run before its last message was complete.")
        sizes = list[int]()
        data = list[bytes]()
        for payload in payloads_of(part) if kinds[name] in (Answer, Step) else []:
            sizes.append(payload.size)
            data.append(payload.data)
        if sum(sizes) > (room := self._room.get(run, 0)):
            raise ProtocolError(f"{sum(sizes)} bytes for run {run[:40]!a}, where {room} fit.")
        if list(map(len, data)) == sizes:
            return read(kinds[name], part, data)
        if any(data):
            raise ProtocolError("a payload that has another size than it states.")
        assembly = self._under_way[run] = _Assembly(body, sizes)
        return self._if_complete(run, assembly, kinds)

    def _if_complete(self, run: str, assembly: _Assembly, kinds: dict[str, type[Any]]) -> object:
        if not assembly.complete:
            return None
        del self._under_way[run]
        name = assembly.body.WhichOneof("body")
        return read(kinds[name], getattr(assembly.body, name), assembly.payloads())
