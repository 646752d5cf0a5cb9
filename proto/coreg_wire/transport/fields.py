"""Frozen dataclasses to protobuf messages of the same shape and back, field by field.

The same code serves every message and the plan: a dataclass's field is the protobuf field of the
same name, and a union of dataclasses is the oneof of the same name. Received values must have the
field's type, be among its values (`Literal`) and satisfy its limits (`Ge`, `Gt`, `Le`, `Len`,
`Named`). Payloads (`Words`, `bytes`) arrive beside a message, in the order of its fields.
"""

import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, lru_cache
from math import isfinite
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
L = TypeVar("L")
Payloads: TypeAlias = Iterator[bytes]
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
                for entry in entries:
                    fill(getattr(message, name).add(), entry, with_payloads=with_payloads)
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


@dataclass(frozen=True)
class _Field:
    """A field of a dataclass: what its type says of the values that fit.

    Of a list ``kind`` and ``limits`` are those of an entry, and ``length`` is the list's. ``rules``
    are names that can stand in place of a number.
    """

    name: str
    where: str  # for messages
    kind: Any
    limits: tuple[Limit, ...]
    parts: tuple[Any, ...]  # the dataclasses that it can be
    length: Len | None
    rules: frozenset[str]
    optional: bool  # absent: None, or an empty text


def payloads_of(message: Any) -> list[Any]:
    """The payloads of an answer or a step as protobuf messages, in the order of reading."""
    summed = [message.summed] if message.HasField("summed") else []
    return summed + list(map(attrgetter("data"), message.parts))


def read(kind: type[T], message: Any, payloads: Iterable[bytes] = ()) -> T:
    """The dataclass of that kind from its protobuf message and its payloads, in order."""
    left = iter(payloads)
    values = {field.name: _read(field, message, left) for field in _fields(cast(Hashable, kind))}
    try:
        return kind(**values)
    except UsageError as error:  # each value is valid, but not their combination
        raise ProtocolError(f"{kind.__name__}: {error}") from None


@cache
def _fields(kind: Any) -> list[_Field]:
    hints = get_type_hints(kind, include_extras=True)
    return [_field(kind, field, hints[field.name]) for field in fields(kind)]


def _field(kind: type, field: "Field[Any]", hint: Any) -> _Field:
    base, limits = _unwrapped(hint)
    length = None
    if get_origin(base) is tuple:
        length = _limit(Len, limits) or Len(0)
        base, limits = _unwrapped(get_args(base)[0])
    members = get_args(base) if get_origin(base) in (Union, UnionType) else (base,)
    rules = frozenset[str]()
    if len(members) > 1:
        rules, value = _rules(members)
        base, limits = _unwrapped(value)
    return _Field(
        name=field.name,
        where=f"{kind.__name__}.{field.name}",
        kind=base,
        limits=limits,
        parts=tuple(filter(_is_part, members)),
        length=length,
        rules=rules,
        optional=NoneType in members or (field.default is not MISSING and base is str),
    )


def _is_part(member: Any) -> bool:
    return is_dataclass(member) and member is not Words


def _rules(members: Iterable[Any]) -> tuple[frozenset[str], Any]:
    """Of a union: the names that it allows, and the type of its other values."""
    names = set[str]()
    value: Any = NoneType
    for member in members:
        if get_origin(member) is Literal:
            names.update(get_args(member))
        elif member is not NoneType:
            value = member
    return frozenset(names), value


def _limit(kind: type[L], limits: Iterable[Limit]) -> L | None:
    """The limit of this kind, if there is one."""
    return next((limit for limit in limits if isinstance(limit, kind)), None)


def _unwrapped(hint: Any) -> tuple[Any, tuple[Limit, ...]]:
    if get_origin(hint) is Annotated:
        base, *metadata = get_args(hint)
        inner, limits = _unwrapped(base)
        return inner, (*limits, *metadata)
    return hint, ()


def _read(field: _Field, message: Any, payloads: Payloads) -> Any:
    if field.kind is Words:
        if message.HasField(field.name):
            return _words(field, next(payloads))
        return None
    if field.kind is bytes:
        return next(payloads)
    if field.length is not None:
        return _many(field, field.length, getattr(message, field.name), payloads)
    if field.parts:
        return _part(field, message, payloads)
    value = getattr(message, field.name)
    if field.rules:
        return _number_or_rule(field, value)
    return _checked(field, value)


def _words(field: _Field, data: bytes) -> Words:
    if len(data) % WORD.itemsize:
        raise ProtocolError(f"{field.where} has {len(data)} bytes, which are no whole words.")
    return Words(np.frombuffer(data, dtype=WORD))


def _part(field: _Field, message: Any, payloads: Payloads) -> Any:
    """A message in a message, or one of several kinds."""
    if field.name in message.DESCRIPTOR.oneofs_by_name:
        chosen = message.WhichOneof(field.name)
        for kind in field.parts:
            if snake(kind.__name__) == chosen:
                return read(kind, getattr(message, chosen), payloads)
        raise ProtocolError(f"{field.where} is of a kind that this version does not know.")
    if message.HasField(field.name):
        return read(field.parts[0], getattr(message, field.name), payloads)
    if field.optional:
        return None
    raise ProtocolError(f"{field.where} is missing.")


def _many(field: _Field, length: Len, values: Any, payloads: Payloads) -> tuple[Any, ...]:
    if not length.min_length <= len(values) <= (length.max_length or len(values)):
        fits = f"{length.min_length} to {length.max_length} fit"
        raise ProtocolError(f"{field.where} has {len(values)} entries; {fits}.")
    if field.parts:
        return tuple(read(field.kind, entry, payloads) for entry in values)
    return tuple(_checked(field, entry) for entry in values)


def _number_or_rule(field: _Field, value: Any) -> str | float:
    match value.WhichOneof("kind"):
        case "rule" if value.rule in field.rules:
            return str(value.rule)
        case "value":
            return float(_checked(field, value.value))
        case None:
            raise ProtocolError(f"{field.where} is missing.")
        case _:
            raise _unknown(field, value.rule)


def _checked(field: _Field, value: Any) -> Any:
    """A text, a number, or one of the names of a type."""
    kind = field.kind
    if kind is str:
        return _text(field, value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise _unknown(field, value)
        return value
    if issubclass(kind, Enum):
        if value not in kind.__members__:
            raise _unknown(field, value)
        return kind[value]
    return _number(field, value)


def _unknown(field: _Field, value: str) -> ProtocolError:
    unknown = ascii(value[:40])
    return ProtocolError(f"{field.where} is {unknown}, which this version does not know.")


def _number(field: _Field, value: Any) -> Any:
    if not isfinite(value):
        raise ProtocolError(f"{field.where} is {value}.")
    for limit in field.limits:
        match limit:
            case Le(le=most) if value > most:
                raise ProtocolError(f"{field.where} is {value}; at most {most} fits.")
            case Gt(gt=least) if value <= least:
                raise ProtocolError(f"{field.where} is {value}; only more than {least} fits.")
            case Ge(ge=least) if value < least:
                raise ProtocolError(f"{field.where} is {value}; at least {least} fits.")
            case _:
                pass
    return value


def _text(field: _Field, value: str) -> str:
    if field.optional and not value:
        return ""
    length = _limit(Len, field.limits) or Len(0)
    most = length.max_length or MAX_TEXT
    if not length.min_length <= len(value) <= most:
        fits = f"{length.min_length} to {most} fit"
        raise ProtocolError(f"{field.where} has {len(value)} characters; {fits}.")
    named = _limit(Named, field.limits)
    if named is not None and (value or not named.optional) and not _is_name(named.what, value):
        raise ProtocolError(f"{field.where} is {value[:80]!a}, which is no {named.what}'s name.")
    if value.isprintable():
        return value
    return text(value)


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
