"""Messages of every kind for the tests of frames: strategies of hypothesis, and functions that make
and read frames.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Ge, Gt, Le, Len
from hypothesis import strategies as st

from coreg_core.messages import Answer, FromSite, Report, ToSite, Words
from coreg_core.plan import Plan
from coreg_core.terms import Named
from coreg_wire.transport.codec import PIECE_BYTES, Assembler, frames_of

REPOSITORY = Path(__file__).parents[2]
PIECE = PIECE_BYTES // 8
Made = Callable[[], Any]

texts = st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), max_size=40)
# Runs that the assemblers of these tests expect; other vectors are refused, which has tests of its
# own.
RUNS = ("r", "run-2", "another-run")
NAMES = ("a", "lab-2", "x.y_z")
word_lists = st.lists(st.integers(0, 2**64 - 1), max_size=40)


def made(kind: Any) -> st.SearchStrategy[Made]:
    """A dataclass with values of its fields' types and within their limits, which the test makes by
    calling.

    Beartype looks at a random entry of a tuple, and hypothesis forbids that while it draws.
    """
    hints = get_type_hints(kind, include_extras=True)
    values = st.fixed_dictionaries(
        {field.name: drawn(hints[field.name], field.name) for field in fields(kind)}
    )
    return values.map(lambda found: partial(_built, kind, found))


def _built(kind: Any, values: dict[str, Any]) -> Any:
    return kind(**{name: _called(value) for name, value in values.items()})


def _called(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_called, value))
    if isinstance(value, partial):
        return value()
    return value


def drawn(hint: Any, name: str, *limits: Any) -> st.SearchStrategy[Any]:
    """Values of a field."""
    if get_origin(hint) is Annotated:
        inner, *more = get_args(hint)
        return drawn(inner, name, *limits, *more)
    least = max((limit.ge for limit in limits if isinstance(limit, Ge)), default=None)
    most = min((limit.le for limit in limits if isinstance(limit, Le)), default=None)
    kind = get_origin(hint) or hint
    if kind in (Union, UnionType):
        return st.one_of(*(drawn(each, name, *limits) for each in get_args(hint)))
    if kind is Literal:  # the parts of an agreement's models are in no score
        if name == "trained":
            return st.just("additive")
        return st.sampled_from(get_args(hint))
    if kind is tuple:
        length = next((limit for limit in limits if isinstance(limit, Len)), Len(0, 3))
        items = drawn(get_args(hint)[0], name)
        return st.lists(items, min_size=length.min_length, max_size=min(length.max_length, 4)).map(
            tuple
        )
    if kind is str:
        return _text(name, limits)
    if kind is int:
        return st.integers(least or 0, 2**64 - 1 if most is None else most)
    if kind is float:
        above = any(isinstance(limit, Gt) for limit in limits)
        least = 0.0 if above else least
        found = st.floats(least, most, exclude_min=above, allow_nan=False, allow_infinity=False)
        return found if least is None else found.map(abs)  # -0.0 is at least 0, and another number
    if hint is bytes:
        return st.binary(max_size=40)
    if hint is Words:
        return word_lists.map(lambda values: partial(Words, np.array(values, dtype="<u8")))
    if is_dataclass(hint):
        return made(hint)
    return st.from_type(hint)


def _text(name: str, limits: tuple[Any, ...]) -> st.SearchStrategy[str]:
    named = next((limit for limit in limits if isinstance(limit, Named)), None)
    if named is not None:
        names = st.sampled_from(RUNS if name == "run" else NAMES)
        if named.optional:
            return st.just("") | names
        return names
    length = next((limit for limit in limits if isinstance(limit, Len)), None)
    if length is None:
        return texts
    return texts.map(lambda text: (text or "x" * length.min_length)[: length.max_length])


FROM_SITE = {kind: made(kind) for kind in get_args(FromSite)}
TO_SITE = {kind: made(kind) for kind in get_args(ToSite)}
plans = made(Plan)
from_site = st.one_of(FROM_SITE.values())
to_site = st.one_of(TO_SITE.values())


def answered(count: int, run: str = "r", number: int = 0) -> Answer:
    """An answer of so many words."""
    values = np.random.default_rng(count).integers(0, 2**64, size=count, dtype="<u8")
    return Answer(run, 0, number, Report(), summed=Words(values))


def expecting(room: int, *expected: str) -> Assembler:
    assembler = Assembler()
    for run in expected or RUNS:
        assembler.expect(run, room)
    return assembler


def from_site_frames(frames: Iterable[bytes], room: int = 2000) -> list[FromSite]:
    assembler = expecting(room)
    whole = [assembler.feed_site(data) for data in frames]
    return [message for message in whole if message is not None]


def to_site_frames(frames: Iterable[bytes], room: int = 2000) -> list[ToSite]:
    assembler = expecting(room)
    whole = [assembler.feed_coordinator(data) for data in frames]
    return [message for message in whole if message is not None]


def of_site(message: FromSite) -> list[bytes]:
    return list(frames_of(message))


def of_coordinator(message: ToSite) -> list[bytes]:
    return list(frames_of(message))
