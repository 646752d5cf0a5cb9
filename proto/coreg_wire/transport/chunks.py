"""A frame that is a piece of a vector, written and read with one copy of its bytes: protobuf's own way makes three.

    0x12 length ( 0x0a length data  0x12 length run )        field 2 of a frame, a Chunk: its fields 1 and 2

These are the bytes that protobuf writes. It may read other ones for the same frame (fields in another order, longer
numbers): what is not of this form is left to it.
"""

from collections.abc import Iterator

_CHUNK, _DATA, _RUN = b"\x12", b"\x0a", b"\x12"


def chunk_frames(data: memoryview, size: int, run: str) -> Iterator[bytes]:
    """The pieces, of ``size`` bytes but for the last, as frames of either direction."""
    name = run.encode()
    tail = _RUN + _varint(len(name)) + name if name else b""
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        head = _DATA + _varint(len(piece))
        yield b"".join((_CHUNK, _varint(len(head) + len(piece) + len(tail)), head, piece, tail))


def chunk_of(frame: bytes) -> tuple[str, memoryview] | None:
    """The run and the piece, where the frame is one of the form above; None: whatever it is, protobuf reads it."""
    try:
        length, at = _field(frame, 0, _CHUNK)
        size, start = _field(frame, at, _DATA)
        named, name = _field(frame, start + size, _RUN)
        if not (at + length == name + named == len(frame)):
            return None
        return frame[name:].decode(), memoryview(frame)[start : start + size]
    except (IndexError, UnicodeDecodeError, _OtherForm):
        return None


class _OtherForm(Exception):
    """Not the bytes that are looked for."""


def _field(frame: bytes, at: int, tag: bytes) -> tuple[int, int]:
    """The length of the field that begins there, and where its content does."""
    if frame[at] != tag[0]:
        raise _OtherForm
    number = shift = 0
    while True:
        at += 1
        number |= (frame[at] & 0x7F) << shift
        if frame[at] < 0x80:
            return number, at + 1
        shift += 7
        if shift > 28:
            raise _OtherForm


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
