"""How large the pieces of a vector are: by what the link has shown, and by nothing that a buffer could feign."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.protocol.messages import Answer, Head, Report, Step
from coreg_core.protocol.words import Words
from coreg_wire.transport.chunk_size import SECONDS_A_PIECE, Pace, piece_at
from coreg_wire.transport.codec import (
    LARGEST_PIECE,
    MAX_FRAME_BYTES,
    SMALLEST_PIECE,
    Assembler,
    coordinator_message_to_frames,
    site_message_to_frames,
)
from coreg_wire.transport.fields import ProtocolError


def answer_of(count: int) -> Answer:
    return Answer("r", 0, 0, Head("a", "", "", "", ""), Report(), words=Words(np.arange(count, dtype="<u8")))


@given(st.floats(0.0, 1e12))
def test_a_piece_takes_half_a_second_at_most_unless_it_is_the_smallest(rate: float) -> None:
    assert piece_at(rate) == (LARGEST_PIECE if rate * SECONDS_A_PIECE >= LARGEST_PIECE else SMALLEST_PIECE)


def test_pieces_grow_where_words_were_answered_at_once_and_shrink_again() -> None:
    pace = Pace()
    assert pace.piece == SMALLEST_PIECE
    pace.goes("a", 8_000_000, 100.0)
    pace.whole("a")
    pace.answered("b", 100.001)  # another run's word says nothing of it
    assert pace.piece == SMALLEST_PIECE
    pace.answered("a", 101.0)
    assert pace.piece == LARGEST_PIECE
    pace.answered("a", 900.0)  # a second word about it is about nothing
    assert pace.piece == LARGEST_PIECE
    pace.goes("a", 8_000_000, 200.0)
    pace.whole("a")
    pace.answered("a", 280.0)  # 100 kB/s
    assert pace.piece == SMALLEST_PIECE


def test_what_a_buffer_holds_and_what_is_over_says_nothing() -> None:
    pace = Pace()
    pace.goes("a", SMALLEST_PIECE - 1, 0.0)
    pace.whole("a")
    pace.answered("a", 0.001)
    pace.goes("b", 8_000_000, 0.0)
    pace.whole("b")
    pace.forget("b")
    pace.answered("b", 0.001)
    pace.whole("b")
    pace.answered("b", 0.001)
    assert pace.piece == SMALLEST_PIECE


def test_what_is_said_before_all_of_it_went_out_is_about_something_else() -> None:
    pace = Pace()
    pace.goes("a", 8_000_000, 0.0)
    pace.answered("a", 1.0)  # the rest of the answer to the attempt before, say
    pace.whole("a")
    pace.answered("a", 1.1)
    assert pace.piece == SMALLEST_PIECE


@pytest.mark.parametrize("piece", [SMALLEST_PIECE, 2 * SMALLEST_PIECE, LARGEST_PIECE])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_whatever_the_piece_the_words_are_the_same(piece: int, more: int) -> None:
    rows = 2 * piece // 8 + more
    answer = answer_of(rows)
    step = Step("r", 0, 0, words=answer.words)
    for message, frames, feed in (
        (step, list(coordinator_message_to_frames(step, piece)), Assembler.feed_coordinator),
        (answer, list(site_message_to_frames(answer, piece)), Assembler.feed_site),
    ):
        assert len(frames) == -(-8 * rows // piece)
        assert all(len(frame) <= MAX_FRAME_BYTES for frame in frames)
        assembler = Assembler()
        assembler.expect("r", rows)
        *most, last = [feed(assembler, frame) for frame in frames]
        assert last == message
        assert most == [None] * len(most)
        assert assembler.run == "r"


def test_a_piece_may_have_another_size_than_the_one_before_but_not_less_than_the_smallest() -> None:
    rows = 4 * SMALLEST_PIECE // 8
    answer = answer_of(rows)
    small, large = (list(site_message_to_frames(answer, n * SMALLEST_PIECE)) for n in (1, 2))
    assembler = Assembler()
    assembler.expect("r", rows)
    assert [assembler.feed_site(frame) for frame in (*small[:2], large[1])] == [None, None, answer]
    tiny = list(site_message_to_frames(answer, SMALLEST_PIECE - 8))
    with pytest.raises(ProtocolError, match="a piece of 131064 bytes at 0"):
        assembler.feed_site(tiny[0])


def test_a_piece_above_the_largest_is_refused() -> None:
    rows = 2 * LARGEST_PIECE // 8
    answer = answer_of(rows)
    assembler = Assembler()
    assembler.expect("r", rows)
    with pytest.raises(ProtocolError, match="a piece of 1048584 bytes at 0"):
        assembler.feed_site(next(iter(site_message_to_frames(answer, LARGEST_PIECE + 8))))
