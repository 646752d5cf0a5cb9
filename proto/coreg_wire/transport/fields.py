"""Frozen dataclasses to protobuf messages of the same shape and back, field by field.

The same code serves every message and the plan: a dataclass's field is the protobuf field of the
same name, and a union of dataclasses is the oneof of the same name. Received values must have the
field's type, be among its values (`Literal`) and satisfy its limits (`Ge`, `Gt`, `Le`, `Len`,
`Named`). Payloads (`Words`, `bytes`) arrive beside a message, in the order of its fields.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
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
from coreg_core.objectives.setting import Named
from coreg_core.secure.sums import WORD

MAX_TEXT = 10_000  # characters of a reason; longer ones are cut before sending, refused on receipt
T = TypeVar("T")
Payloads: TypeAlias = Iterator[bytes]
Reader: TypeAlias = Callable[[Any, Payloads], Any]
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
    for field in fields(value):
        _set(message, field.name, getattr(value, field.name), with_payloads=with_payloads)


def _set(message: Any, name: str, value: Any, *, with_payloads: bool) -> None:
    match value:
        case None:
            return
        case Words():
            _set_payload(getattr(message, name), value.data, with_payloads=with_payloads)
        case bytes():
            _set_payload(getattr(message, name), value, with_payloads=with_payloads)
        case Enum():
            setattr(message, name, value.name)
        case tuple():
            _set_each(message, name, value, with_payloads=with_payloads)
        case str() if name == "reason":
            setattr(message, name, value[:MAX_TEXT])
        case _ if is_dataclass(value):
            one_of = message.DESCRIPTOR.oneofs_by_name.get(name)
            part = getattr(message, name if one_of is None else snake(type(value).__name__))
            part.SetInParent()  # otherwise a message whose fields are all zero would be absent
            fill(part, value, with_payloads=with_payloads)
        case str() | float() | int() if _is_message(message, name):
            setattr(getattr(message, name), "rule" if isinstance(value, str) else "value", value)
        case _:
            setattr(message, name, value)


def _is_message(message: Any, name: str) -> bool:
    return message.DESCRIPTOR.fields_by_name[name].message_type is not None


def _set_payload(payload: Any, data: bytes | memoryview, *, with_payloads: bool) -> None:
    payload.SetInParent()
    payload.size = len(data)
    if with_payloads:
        payload.data = bytes(data)


def _set_each(message: Any, name: str, values: tuple[Any, ...], *, with_payloads: bool) -> None:
    if not (values and is_dataclass(values[0])):
        getattr(message, name).extend(values)
        return
    for value in values:
        fill(getattr(message, name).add(), value, with_payloads=with_payloads)


# --- in -----------------------------------------------------------------------------------------


def payloads_of(message: Any) -> list[Any]:
    """The payloads of an answer or a step as protobuf messages, in the order of reading."""
    summed = [message.summed] if message.HasField("summed") else []
    return summed + [part.data for part in message.parts]


def read(kind: type[T], message: Any, payloads: Iterable[bytes] = ()) -> T:
    """The dataclass of that kind from its protobuf message and its payloads."""
    return _read(kind, message, iter(payloads))


def _read(kind: type[T], message: Any, payloads: Payloads) -> T:
    readers = _readers(cast(Hashable, kind))
    try:
        return kind(**{name: reader(message, payloads) for name, reader in readers.items()})
    except UsageError as error:  # each value is valid, but not their combination
        raise ProtocolError(f"{kind.__name__}: {error}") from None


@cache
def _readers(kind: Any) -> dict[str, Reader]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _reader(kind, field, hints[field.name]) for field in fields(kind)}


def _reader(kind: type, field: "Field[Any]", hint: Any) -> Reader:
    name, where = field.name, f"{kind.__name__}.{field.name}"
    base, limits = _unwrapped(hint)
    members = get_args(base) if get_origin(base) in (Union, UnionType) else (base,)
    optional = NoneType in members
    if Words in members:
        return lambda message, payloads: _words(message, name, payloads, where)
    if base is bytes:
        return lambda _message, payloads: next(payloads)
    if any(is_dataclass(member) for member in members):
        kinds = tuple(member for member in members if member is not NoneType)
        return lambda message, payloads: (
            None
            if optional and not message.HasField(name)
            else _read_part(kinds, message, name, payloads, where=where)
        )
    if get_origin(base) is tuple:
        item, item_limits = _unwrapped(get_args(base)[0])
        return lambda message, payloads: _read_tuple(
            getattr(message, name), item, item_limits, limits, where=where, payloads=payloads
        )
    if len(members) > 1:  # a rule, or a number with its limits
        rules = {word for m in members if get_origin(m) is Literal for word in get_args(m)}
        number = next(_unwrapped(m)[1] for m in members if get_origin(m) is not Literal)
        return lambda message, _: _read_rule(getattr(message, name), rules, number, where)
    absent = field.default is not MISSING and base is str
    return lambda message, _: _scalar(getattr(message, name), base, limits, where, absent=absent)


def _unwrapped(hint: Any) -> tuple[Any, tuple[Limit, ...]]:
    if get_origin(hint) is Annotated:
        base, *metadata = get_args(hint)
        inner, limits = _unwrapped(base)
        return inner, (*limits, *metadata)
    return hint, ()


def _words(message: Any, name: str, payloads: Payloads, where: str) -> Words | None:
    if not message.HasField(name):
        return None
    data = next(payloads)
    if len(data) % WORD.itemsize:
        raise ProtocolError(f"{where} has {len(data)} bytes, which are no whole words.")
    return Words(np.frombuffer(data, dtype=WORD))


def _read_part(
    kinds: tuple[Any, ...], message: Any, name: str, payloads: Payloads, *, where: str
) -> Any:
    if name in message.DESCRIPTOR.oneofs_by_name:
        chosen = message.WhichOneof(name)
        for kind in kinds:
            if snake(kind.__name__) == chosen:
                return _read(kind, getattr(message, chosen), payloads)
        raise ProtocolError(f"{where} is of a kind that this version does not know.")
    if not message.HasField(name):
        raise ProtocolError(f"{where} is missing.")
    return _read(kinds[0], getattr(message, name), payloads)


def _read_tuple(
    values: Any,
    item: Any,
    item_limits: tuple[Limit, ...],
    limits: tuple[Limit, ...],
    *,
    where: str,
    payloads: Payloads,
) -> tuple[Any, ...]:
    for limit in limits:
        if isinstance(limit, Len):
            _check_length(len(values), limit, where, "entries")
    if is_dataclass(item) and isinstance(item, type):
        return tuple(_read(item, value, payloads) for value in values)
    return tuple(_scalar(value, item, item_limits, where) for value in values)


def _check_length(length: int, limit: Len, where: str, what: str) -> None:
    most = length if limit.max_length is None else limit.max_length
    if not limit.min_length <= length <= most:
        raise ProtocolError(f"{where} has {length} {what}; {limit.min_length} to {most} fit.")


def _read_rule(message: Any, rules: set[str], limits: tuple[Limit, ...], where: str) -> str | float:
    match message.WhichOneof("kind"):
        case "rule" if message.rule in rules:
            return str(message.rule)
        case "value":
            return float(_limited(message.value, limits, where))
        case None:
            raise ProtocolError(f"{where} is missing.")
        case _:
            unknown = ascii(message.rule[:40])
            raise ProtocolError(f"{where} is {unknown}, which this version does not know.")


def _scalar(
    value: Any, kind: Any, limits: tuple[Limit, ...], where: str, *, absent: bool = False
) -> Any:
    """A text, a number or one of a list; ``absent``: an empty text is none, and has no limits."""
    if kind is str:
        return "" if absent and not value else _text(value, limits, where)
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    if is_enum or get_origin(kind) is Literal:
        if value not in (kind.__members__ if is_enum else get_args(kind)):
            unknown = ascii(value[:40])
            raise ProtocolError(f"{where} is {unknown}, which this version does not know.")
        return kind[value] if is_enum else value
    return _limited(value, limits, where)


def _limited(value: Any, limits: tuple[Limit, ...], where: str) -> Any:
    if not isfinite(value):
        raise ProtocolError(f"{where} is {value}.")
    for limit in limits:
        match limit:
            case Ge(ge=least) if value < least:
                raise ProtocolError(f"{where} is {value}; at least {least} fits.")
            case Gt(gt=below) if value <= below:
                raise ProtocolError(f"{where} is {value}; only more than {below} fits.")
            case Le(le=most) if value > most:
                raise ProtocolError(f"{where} is {value}; at most {most} fits.")
            case _:
                pass
    return value


def _text(value: str, limits: tuple[Limit, ...], where: str) -> str:
    for limit in limits:
        match limit:
            case Len():
                _check_length(len(value), limit, where, "characters")
            case Named(what, optional) if value or not optional:
                _check_name(value, what, where)
            case _:
                pass
    return text(value)


def _check_name(value: str, what: str, where: str) -> None:
    """The rule of certificates: a question to an operator shows no other name."""
    try:
        if what == "site":
            check_site_name(value)
        else:
            check_name(value, what)
    except UsageError:
        raise ProtocolError(f"{where} is {value[:80]!a}, which is no {what}'s name.") from None


def text(value: str) -> str:
    """A peer's text without control characters, which could move the cursor of a terminal."""
    if len(value) > MAX_TEXT:
        raise ProtocolError(f"a text of {len(value)} characters; at most {MAX_TEXT}.")
    if value.isprintable():
        return value
    return "".join(c if c.isprintable() else " " for c in value)
