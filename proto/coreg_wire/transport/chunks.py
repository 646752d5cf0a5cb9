"""Chunk frames (pieces of a vector), encoded and decoded with one copy of the bytes; protobuf makes three.

    0x12 length ( 0x0a length data  0x12 length run )        field 2 of a frame, a Chunk: its fields 1 and 2

These are the bytes that protobuf writes. It also reads other encodings of the same frame (another order of fields, longer
numbers), so frames of another form are left to protobuf.
"""

from collections.abc import Iterator

_CHUNK, _DATA, _RUN = b"\x12", b"\x0a", b"\x12"


def chunk_frames(data: memoryview, size: int, run: str) -> Iterator[bytes]:
    """The pieces as frames, each with ``size`` bytes except the last. Both directions use the same form."""
    name = run.encode()
    tail = _RUN + _varint(len(name)) + name if name else b""
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        head = _DATA + _varint(len(piece))
        yield b"".join((_CHUNK, _varint(len(head) + len(piece) + len(tail)), head, piece, tail))


def chunk_of(frame: bytes) -> tuple[str, memoryview] | None:
    """The run and the piece of a frame of the form above; None for other frames, which protobuf reads."""
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
    """The frame does not have the form above."""


def _field(frame: bytes, at: int, tag: bytes) -> tuple[int, int]:
    """The length of the field at this position, and the position of its content."""
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
