"""Frozen dataclasses to protobuf messages of the same shape and back, field by field.

The same code serves every message and the plan: a dataclass's field is the protobuf field of the
same name, and a union of dataclasses is the oneof of the same name. Received values must have the
field's type, be among its values (`Literal`) and satisfy its limits (`Ge`, `Gt`, `Le`, `Len`,
`Named`). Payloads (`Words`, `bytes`) arrive beside a message, in the order of its fields.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import cache, lru_cache, partial
from math import inf, isfinite
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from annotated_types import BaseMetadata, Ge, Gt, Le, Len

from coreg_core.errors import BadData, UsageError
from coreg_core.messages import Words
from coreg_core.names import check_name, check_site_name
from coreg_core.secure.sums import WORD
from coreg_core.terms import Named

MAX_TEXT = 10_000  # characters of a reason; longer ones are cut before sending, refused on receipt
T = TypeVar("T")
Payloads: TypeAlias = Iterator[bytes]
Reader: TypeAlias = Callable[[Any, Payloads], Any]
Checked: TypeAlias = Callable[[Any], Any]
Limit: TypeAlias = BaseMetadata | Named


class ProtocolError(BadData):
    """A peer broke the protocol."""


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


# --- out ----------------------------------------------------------------------------------------


def fill(message: Any, value: Any, *, with_payloads: bool = True) -> None:
    """Set every field of a protobuf message from the dataclass.

    Without payloads it has their sizes, and codec.py sends them after it.
    """
    for name in _names(cast(Hashable, type(value))):
        match getattr(value, name):
            case None:
                pass
            case Words(data=data) | (bytes() as data):
                payload = getattr(message, name)
                payload.SetInParent()  # of no bytes, too
                payload.size = len(data)
                if with_payloads:
                    payload.data = bytes(data)
            case Enum() as member:
                setattr(message, name, member.name)
            case (first, *_) as entries if is_dataclass(first):
                for each in entries:
                    fill(getattr(message, name).add(), each, with_payloads=with_payloads)
            case tuple() as entries:
                getattr(message, name).extend(entries)
            case (str() | float() | int()) as plain:
                _set_plain(message, name, plain)
            case inner:
                one_of = name in message.DESCRIPTOR.oneofs_by_name
                part = getattr(message, snake(type(inner).__name__) if one_of else name)
                part.SetInParent()  # otherwise a message whose fields are all zero would be absent
                fill(part, inner, with_payloads=with_payloads)


@cache
def _names(kind: Hashable) -> tuple[str, ...]:
    return tuple(field.name for field in fields(cast(Any, kind)))


def _set_plain(message: Any, name: str, value: str | float) -> None:
    """A text or a number; of a field that can be either, the one that it is."""
    if message.DESCRIPTOR.fields_by_name[name].message_type is not None:
        setattr(getattr(message, name), "rule" if isinstance(value, str) else "value", value)
    elif name == "reason":
        setattr(message, name, str(value)[:MAX_TEXT])
    else:
        setattr(message, name, value)


# --- in -----------------------------------------------------------------------------------------


def payloads_of(message: Any) -> list[Any]:
    """The payloads of an answer or a step as protobuf messages, in the order of reading."""
    summed = [message.summed] if message.HasField("summed") else []
    return summed + list(map(attrgetter("data"), message.parts))


def read(kind: type[T], message: Any, payloads: Iterable[bytes] = ()) -> T:
    """The dataclass of that kind from its protobuf message and its payloads, in order."""
    left = iter(payloads)
    values = {}
    for name, reader in _readers(cast(Hashable, kind)):
        values[name] = reader(message, left)
    try:
        return kind(**values)
    except UsageError as error:  # each value is valid, but not their combination
        raise ProtocolError(f"{kind.__name__}: {error}") from None


@cache
def _readers(kind: Any) -> list[tuple[str, Reader]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(field.name, _reader(kind, field, hints[field.name])) for field in fields(kind)]


def _reader(kind: type, field: "Field[Any]", hint: Any) -> Reader:
    where = f"{kind.__name__}.{field.name}"
    base, limits = _unwrapped(hint)
    members = get_args(base) if get_origin(base) in (Union, UnionType) else (base,)
    if Words in members:
        return partial(_words, field.name, where)
    if base is bytes:
        return _bytes
    kinds = tuple(member for member in members if is_dataclass(member))
    if kinds:
        return partial(_part, field.name, where, kinds, NoneType in members)
    if get_origin(base) is tuple:
        return _reader_of_many(field.name, where, get_args(base)[0], limits)
    if len(members) > 1:
        return _reader_of_rule(field.name, where, members)
    absent = field.default is not MISSING and base is str  # an empty text is none
    return partial(_plain, field.name, _value(base, limits, where, absent=absent))


def _reader_of_many(name: str, where: str, hint: Any, limits: tuple[Limit, ...]) -> Reader:
    """The reader of a list. ``hint``: the type of an entry; ``limits``: those of the list."""
    item, item_limits = _unwrapped(hint)
    each = None if is_dataclass(item) else _value(item, item_limits, where)
    length = next((limit for limit in limits if isinstance(limit, Len)), Len(0))
    return partial(_many, name, where, item, each, length)


def _reader_of_rule(name: str, where: str, members: tuple[Any, ...]) -> Reader:
    """The reader of the name of a rule, or of a number with its limits."""
    rules = set[str]()
    numbers = []
    for member in members:
        if get_origin(member) is Literal:
            rules.update(get_args(member))
        else:
            numbers.append(_unwrapped(member))
    number, limits = numbers[0]
    return partial(_rule, name, where, rules, _value(number, limits, where))


def _unwrapped(hint: Any) -> tuple[Any, tuple[Limit, ...]]:
    if get_origin(hint) is Annotated:
        base, *metadata = get_args(hint)
        inner, limits = _unwrapped(base)
        return inner, (*limits, *metadata)
    return hint, ()


def _value(kind: Any, limits: tuple[Limit, ...], where: str, *, absent: bool = False) -> Checked:
    """The check of a text, a number, or one of a list."""
    if kind is str:
        named = next((limit for limit in limits if isinstance(limit, Named)), None)
        length = next((limit for limit in limits if isinstance(limit, Len)), Len(0))
        return partial(_text, where, absent, length, named)
    if (isinstance(kind, type) and issubclass(kind, Enum)) or get_origin(kind) is Literal:
        return partial(_one_of, where, kind)
    return partial(_number, where, _Range.of(limits))


# --- one field ----------------------------------------------------------------------------------


def _words(name: str, where: str, message: Any, payloads: Payloads) -> Words | None:
    if not message.HasField(name):
        return None
    data = next(payloads)
    if len(data) % WORD.itemsize:
        raise ProtocolError(f"{where} has {len(data)} bytes, which are no whole words.")
    return Words(np.frombuffer(data, dtype=WORD))


def _bytes(_message: Any, payloads: Payloads) -> bytes:
    return next(payloads)


def _plain(name: str, checked: Checked, message: Any, _payloads: Payloads) -> Any:
    return checked(getattr(message, name))


def _part(
    name: str,
    where: str,
    kinds: tuple[Any, ...],
    optional: bool,
    message: Any,
    payloads: Payloads,
) -> Any:
    """A message in a message, or one of several kinds."""
    if name in message.DESCRIPTOR.oneofs_by_name:
        chosen = message.WhichOneof(name)
        for kind in kinds:
            if snake(kind.__name__) == chosen:
                return read(kind, getattr(message, chosen), payloads)
        raise ProtocolError(f"{where} is of a kind that this version does not know.")
    if message.HasField(name):
        return read(kinds[0], getattr(message, name), payloads)
    if optional:
        return None
    raise ProtocolError(f"{where} is missing.")


def _many(
    name: str,
    where: str,
    item: Any,
    each: Checked | None,
    length: Len,
    message: Any,
    payloads: Payloads,
) -> tuple[Any, ...]:
    values = getattr(message, name)
    if not length.min_length <= len(values) <= (length.max_length or len(values)):
        fits = f"{length.min_length} to {length.max_length} fit"
        raise ProtocolError(f"{where} has {len(values)} entries; {fits}.")
    if each is not None:
        return tuple(map(each, values))
    return tuple(map(partial(read, item, payloads=payloads), values))


def _rule(
    name: str, where: str, rules: set[str], number: Checked, message: Any, _payloads: Payloads
) -> str | float:
    value = getattr(message, name)
    match value.WhichOneof("kind"):
        case "rule" if value.rule in rules:
            return str(value.rule)
        case "value":
            return float(number(value.value))
        case None:
            raise ProtocolError(f"{where} is missing.")
        case _:
            unknown = ascii(value.rule[:40])
            raise ProtocolError(f"{where} is {unknown}, which this version does not know.")


# --- one value ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Range:
    """The numbers that fit: from ``least`` (``above``: without it) to ``most``."""

    least: float = -inf
    most: float = inf
    above: bool = False

    @classmethod
    def of(cls, limits: tuple[Limit, ...]) -> "_Range":
        found = cls()
        for limit in limits:
            match limit:
                case Ge(ge=least):
                    found = replace(found, least=cast(float, least))
                case Gt(gt=least):
                    found = replace(found, least=cast(float, least), above=True)
                case Le(le=most):
                    found = replace(found, most=cast(float, most))
                case _:
                    pass
        return found


def _number(where: str, fits: _Range, value: Any) -> Any:
    if not isfinite(value):
        raise ProtocolError(f"{where} is {value}.")
    if value > fits.most:
        raise ProtocolError(f"{where} is {value}; at most {fits.most} fits.")
    if fits.above and value <= fits.least:
        raise ProtocolError(f"{where} is {value}; only more than {fits.least} fits.")
    if value < fits.least:
        raise ProtocolError(f"{where} is {value}; at least {fits.least} fits.")
    return value


def _one_of(where: str, kind: Any, value: str) -> Any:
    is_enum = isinstance(kind, type)
    if value not in (kind.__members__ if is_enum else get_args(kind)):
        unknown = ascii(value[:40])
        raise ProtocolError(f"{where} is {unknown}, which this version does not know.")
    return kind[value] if is_enum else value


def _text(where: str, absent: bool, length: Len, named: Named | None, value: str) -> str:
    if absent and not value:
        return ""
    if not length.min_length <= len(value) <= (length.max_length or MAX_TEXT):
        most = length.max_length or MAX_TEXT
        fits = f"{length.min_length} to {most} fit"
        raise ProtocolError(f"{where} has {len(value)} characters; {fits}.")
    if named is not None and (value or not named.optional) and not _is_name(named.what, value):
        raise ProtocolError(f"{where} is {value[:80]!a}, which is no {named.what}'s name.")
    return value if value.isprintable() else text(value)


@lru_cache(maxsize=4096)
def _is_name(what: str, value: str) -> bool:
    """The rule of certificates: a question to an operator shows no other name."""
    try:
        if what == "site":
            check_site_name(value)
        else:
            check_name(value, what)
    except UsageError:
        return False
    return True


def text(value: str) -> str:
    """A peer's text without control characters, which could move the cursor of a terminal."""
    if len(value) > MAX_TEXT:
        raise ProtocolError(f"a text of {len(value)} characters; at most {MAX_TEXT}.")
    return "".join(c if c.isprintable() else " " for c in value)
