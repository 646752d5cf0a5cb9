r"""Messages to protobuf frames and back, with all checks that are possible before a message is used.

Words are raw little-endian integers, in pieces of 1 MiB. The first piece is inside the message, the others are in Chunk frames,
each with its run, so that the runs of one stream do not wait for each other. Frames from a peer are checked for size and order.
The size is checked *before* memory is allocated, and nothing is allocated for a run that was not expected.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias, cast, get_args

import numpy as np

from coreg_core.messages import Answer, FromSite, Step, ToSite, Words
from coreg_core.secure.sums import WORD
from coreg_wire.transport.fields import ProtocolError, fill, read, snake, text
from coreg_wire.v1 import federation_pb2 as pb

PIECE_BYTES = 1 << 20

Frame: TypeAlias = pb.SiteFrame | pb.CoordinatorFrame
_FROM_SITE: dict[str, type[Any]] = {snake(kind.__name__): kind for kind in get_args(FromSite)}
_TO_SITE: dict[str, type[Any]] = {snake(kind.__name__): kind for kind in get_args(ToSite)}
_CARRIERS = ("answer", "step")  # messages that have words


# --- out ----------------------------------------------------------------------------------------------------------


def frames_of(message: FromSite | ToSite) -> Iterator[bytes]:
    """One message, and the chunks of its words."""
    name = snake(type(message).__name__)
    frame_type: Any = pb.SiteFrame if name in _FROM_SITE else pb.CoordinatorFrame
    frame = frame_type()
    body = getattr(frame.message, name)
    body.SetInParent()  # otherwise a message without set fields would be absent
    fill(body, message)
    data = memoryview(b"")
    words = message.words if isinstance(message, Answer | Step) else None
    if words is not None:
        data = words.values.data.cast("B") if words.values.size else data
        body.words.count = len(words.values)
        body.words.data = bytes(
            data[:PIECE_BYTES]
        )  # in place, since a constructor would copy the data once more
    yield frame.SerializeToString()
    for start in range(PIECE_BYTES, len(data), PIECE_BYTES):
        chunk = pb.Chunk(run=body.run, data=bytes(data[start : start + PIECE_BYTES]))
        yield frame_type(chunk=chunk).SerializeToString()


# --- in -----------------------------------------------------------------------------------------------------------


class _Assembly:
    """An incomplete message. The memory of its words is allocated once, after the check of the size, and filled in order."""

    def __init__(self, body: Any, head: pb.Words, room: int):
        if head.count > room:
            raise ProtocolError(f"{head.count} words announced; at most {room} fit.")
        self.body = body
        self.values = np.empty(head.count, dtype=WORD)
        self._bytes = self.values.data.cast("B")
        self._filled = 0
        self.add(head.data)

    def add(self, data: bytes) -> None:
        end = self._filled + len(data)
        if (
            end > len(self._bytes)
            or len(data) > PIECE_BYTES
            or (len(data) < PIECE_BYTES and end < len(self._bytes))
        ):
            raise ProtocolError(
                f"a piece of {len(data)} bytes at {self._filled} of words of {len(self._bytes)}."
            )
        self._bytes[self._filled : end] = data
        self._filled = end

    @property
    def complete(self) -> bool:
        return self._filled == len(self._bytes)


class Assembler:
    """Frames in, whole messages out; one for each open stream. Words of unexpected runs are rejected."""

    def __init__(self) -> None:
        self._room: dict[str, int] = {}
        self._under_way: dict[str, _Assembly] = {}

    def expect(self, run: str, words: int) -> None:
        """From now on, accept messages of the run with at most ``words`` words."""
        self._room[run] = words

    def forget(self, run: str) -> None:
        """The run is over: reject its words."""
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
            raise ProtocolError(
                f"a frame that is not a protobuf message ({type(error).__name__})."
            ) from None
        match frame.WhichOneof("content"):
            case "message":
                return self._message(frame.message, kinds)
            case "chunk":
                return self._piece(frame.chunk.run, frame.chunk.data, kinds)
            case _:
                raise ProtocolError("an empty frame.")

    def _piece(self, run: str, data: bytes, kinds: dict[str, type[Any]]) -> object:
        run = text(run)
        assembly = self._under_way.get(run)
        if assembly is None:
            raise ProtocolError("a chunk that belongs to no message.")
        assembly.add(data)
        return self._whole(run, kinds)

    def _message(self, body: pb.FromSite | pb.ToSite, kinds: dict[str, type[Any]]) -> object:
        name = body.WhichOneof("body")
        if name is None or name not in kinds:
            raise ProtocolError("a message of a kind that this version does not know.")
        part = getattr(body, name)
        run = text(part.run) if "run" in part.DESCRIPTOR.fields_by_name else ""
        if run in self._under_way:
            raise ProtocolError("a new message of a run before its last message was complete.")
        if name not in _CARRIERS or not part.HasField("words"):
            return read(kinds[name], part)
        if run not in self._room:
            raise ProtocolError(f"words for run {run[:40]!r}, whose plan was not accepted here.")
        self._under_way[run] = _Assembly(body, part.words, self._room[run])
        return self._whole(run, kinds)

    def _whole(self, run: str, kinds: dict[str, type[Any]]) -> object:
        assembly = self._under_way[run]
        if not assembly.complete:
            return None
        del self._under_way[run]
        name = assembly.body.WhichOneof("body")
        return read(kinds[name], getattr(assembly.body, name), Words(assembly.values))
