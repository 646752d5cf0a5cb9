r"""Messages to protobuf frames and back, in pairs, with every check that can be made before a message is used.

A vector travels as raw little-endian doubles, in pieces of 128 KiB to 1 MiB (pace.py says which): the first inside its
message, the rest in Chunk frames, each with its run, so that the runs of one stream do not wait for each other. A
frame is bytes here (chunks.py says why). What comes from a peer is checked for size, shape, order and finiteness, and
the size is checked *before* memory is taken: nothing is taken for a run that was not expected.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias, cast, get_args

import numpy as np

from coreg_core.masking.fixed_point import WORD
from coreg_core.masking.sums import CHECK_WORDS, SCALAR_WORDS
from coreg_core.protocol.messages import MOST_SCALARS, FromSite, ToSite
from coreg_core.protocol.vectors import Vector, Words
from coreg_wire.transport.chunks import chunk_frames, chunk_of
from coreg_wire.transport.fields import ProtocolError, fill, read, snake, text
from coreg_wire.v1 import federation_pb2 as pb

SMALLEST_PIECE, LARGEST_PIECE = 1 << 17, 1 << 20
# A frame is a piece, or a message of many names (a plan, a roster): anything larger is refused by gRPC before it is parsed.
MAX_FRAME_BYTES = 5 << 18

Frame: TypeAlias = pb.SiteFrame | pb.CoordinatorFrame
_FROM_SITE: dict[str, type[Any]] = {snake(kind.__name__): kind for kind in get_args(FromSite)}
_TO_SITE: dict[str, type[Any]] = {snake(kind.__name__): kind for kind in get_args(ToSite)}
_WORDS = "masked"  # its vector is a row of integers
_DOUBLE: np.dtype[Any] = np.dtype("<f8")
# The one field of a message that is a vector, by the message's name in its oneof.
_VECTOR_FIELDS = {
    "prediction": "values",
    "share": "values",
    "masked": "words",
    "ask": "targets",
    "inquiry": "targets",
    "finished": "targets",
}


# --- out ----------------------------------------------------------------------------------------------------------


def site_message_to_frames(message: FromSite, piece: int = SMALLEST_PIECE) -> Iterator[bytes]:
    """One message, and the chunks of its vector, in pieces of so many bytes."""
    return _frames(message, pb.SiteFrame, piece)


def coordinator_message_to_frames(message: ToSite, piece: int = SMALLEST_PIECE) -> Iterator[bytes]:
    """One message, and the chunks of its vector, in pieces of so many bytes."""
    return _frames(message, pb.CoordinatorFrame, piece)


def _frames(message: Any, frame_type: Any, piece: int) -> Iterator[bytes]:
    name = snake(type(message).__name__)
    frame = frame_type()
    body = getattr(frame.message, name)
    body.SetInParent()  # a message without a field that is set is a message all the same
    fill(body, message)
    data = memoryview(b"")
    vector = getattr(message, _VECTOR_FIELDS[name]) if name in _VECTOR_FIELDS else None
    if vector is not None:
        head = getattr(body, _VECTOR_FIELDS[name])
        dtype, shape = (WORD, (vector.values.size, 1)) if isinstance(vector, Words) else (_DOUBLE, vector.shape)
        data = vector.values.astype(dtype, copy=False).data.cast("B") if vector.values.size else data
        head.rows, head.columns = shape
        head.data = bytes(data[:piece])  # in place: a message handed to a constructor is copied once more
    yield frame.SerializeToString()
    if len(data) > piece:
        yield from chunk_frames(data[piece:], piece, message.run)


# --- in -----------------------------------------------------------------------------------------------------------


class _Assembly:
    """A message on its way: its vector's memory is taken once, after the size was checked, and filled in order."""

    def __init__(self, body: Any, head: pb.Vector, room: tuple[int, int]):
        rows, columns = room
        name = body.WhichOneof("body")
        self._words = name == _WORDS
        if self._words:  # as one row; scalars and check stand below the vector
            rows, columns = rows * columns + SCALAR_WORDS * MOST_SCALARS + CHECK_WORDS, 1
        if not (0 < head.rows <= rows and 0 < head.columns <= columns):
            raise ProtocolError(
                f"a vector of {head.rows} x {head.columns} numbers announced; at most {rows} x {columns} fit."
            )
        self.body = body
        dtype = WORD if self._words else _DOUBLE
        self.values = np.empty((head.rows, head.columns), dtype=dtype)
        self._bytes = self.values.data.cast("B")
        self._filled = 0
        self.add(head.data)

    def add(self, data: bytes | memoryview) -> None:
        end = self._filled + len(data)
        full = end == len(self._bytes)
        if end > len(self._bytes) or len(data) > LARGEST_PIECE or (len(data) < SMALLEST_PIECE and not full):
            raise ProtocolError(f"a piece of {len(data)} bytes at {self._filled} of a vector of {len(self._bytes)}.")
        self._bytes[self._filled : end] = data
        self._filled = end

    @property
    def progress(self) -> tuple[int, int]:
        """Bytes that are here, and bytes in all."""
        return self._filled, len(self._bytes)

    @property
    def complete(self) -> bool:
        return self._filled == len(self._bytes)

    def vector(self) -> Vector | Words:
        if self._words:
            return Words(self.values.reshape(-1))
        vector = Vector(self.values.astype(np.float64, copy=False))
        if not vector.finite:
            raise ProtocolError("a vector holds NaN or infinity.")
        return vector


class Assembler:
    """Frames in, whole messages out: one an open stream. No vector is taken for a run that nobody said to expect."""

    def __init__(self) -> None:
        self._room: dict[str, tuple[int, int]] = {}
        self._under_way: dict[str, _Assembly] = {}
        self.run = ""  # that the frame before belongs to; empty where it belongs to none

    def expect(self, run: str, rows: int, columns: int) -> None:
        """From here on, vectors of that run may announce as many rows and columns."""
        self._room[run] = (rows, columns)

    def forget(self, run: str) -> None:
        """The run is over; no vector of it is taken any more."""
        self._room.pop(run, None)
        self._under_way.pop(run, None)

    @property
    def under_way(self) -> Iterable[str]:
        """The runs of which a vector is on its way."""
        return self._under_way.keys()

    def progress(self, run: str) -> tuple[int, int] | None:
        """Bytes of the vector of that run that is on its way, and its length; None when none is."""
        assembly = self._under_way.get(run)
        return None if assembly is None else assembly.progress

    def feed_site(self, frame: bytes) -> FromSite | None:
        """A frame from a site; the message, when one is whole."""
        return cast("FromSite | None", self._feed(frame, pb.SiteFrame, _FROM_SITE))

    def feed_coordinator(self, frame: bytes) -> ToSite | None:
        """A frame from the coordinator; the message, when one is whole."""
        return cast("ToSite | None", self._feed(frame, pb.CoordinatorFrame, _TO_SITE))

    def _feed(self, data: bytes, frame_type: type[Frame], kinds: dict[str, type[Any]]) -> object:
        if (piece := chunk_of(data)) is not None:
            return self._piece(*piece, kinds)
        try:
            frame = frame_type.FromString(data)
        except Exception as error:  # noqa: BLE001 - protobuf raises several kinds, all of which mean this
            raise ProtocolError(f"a frame that is no protobuf message ({type(error).__name__}).") from None
        match frame.WhichOneof("content"):
            case "message":
                return self._message(frame.message, kinds)
            case "chunk":
                return self._piece(frame.chunk.run, frame.chunk.data, kinds)
            case _:
                raise ProtocolError("an empty frame.")

    def _piece(self, run: str, data: bytes | memoryview, kinds: dict[str, type[Any]]) -> object:
        self.run = text(run)
        assembly = self._under_way.get(self.run)
        if assembly is None:
            raise ProtocolError("a chunk that belongs to no vector.")
        assembly.add(data)
        return self._whole(self.run, kinds)

    def _message(self, body: pb.FromSite | pb.ToSite, kinds: dict[str, type[Any]]) -> object:
        name = body.WhichOneof("body")
        if name is None or name not in kinds:
            raise ProtocolError("a message of a kind that this version does not know.")
        part = getattr(body, name)
        field = _VECTOR_FIELDS.get(name)
        self.run = run = text(part.run) if "run" in part.DESCRIPTOR.fields_by_name else ""
        if run in self._under_way:
            raise ProtocolError("a new message of a run before its last one's vector was complete.")
        if field is None or not part.HasField(field):
            return read(kinds[name], part)
        if run not in self._room:
            raise ProtocolError(f"a vector for run {run[:40]!r}, whose plan nobody has accepted here.")
        self._under_way[run] = _Assembly(body, getattr(part, field), self._room[run])
        return self._whole(run, kinds)

    def _whole(self, run: str, kinds: dict[str, type[Any]]) -> object:
        assembly = self._under_way[run]
        if not assembly.complete:
            return None
        del self._under_way[run]
        name = assembly.body.WhichOneof("body")
        return read(kinds[name], getattr(assembly.body, name), assembly.vector())
