"""Frozen dataclasses to protobuf messages of the same shape and back, field by field, with checks of all received values.

The same code serves every message and the plan: a dataclass's field is the protobuf field of the same name, and a union of
dataclasses is the oneof of the same name. Received values must have the field's type, be among its values (`Literal`) and
satisfy its limits (`Ge`, `Gt`, `Le`, `Len`).
"""

import re
from collections.abc import Callable, Hashable
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from annotated_types import BaseMetadata, Ge, Gt, Le, Len

from coreg_core.errors import BadData, UsageError
from coreg_core.messages import Words

MAX_TEXT = 10_000  # characters of a reason or a name; longer reasons are cut before sending and refused on receipt
T = TypeVar("T")


class ProtocolError(BadData):
    """A peer broke the protocol."""


def snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


# --- out ----------------------------------------------------------------------------------------------------------


def fill(message: Any, value: Any) -> None:
    """Set every field of a protobuf message from the dataclass, except `Words`, which codec.py sends in pieces."""
    for field in fields(value):
        _set(message, field.name, getattr(value, field.name))


def _set(message: Any, name: str, value: Any) -> None:
    match value:
        case None | Words():
            return
        case Enum():
            setattr(message, name, value.name)
        case tuple() if value and is_dataclass(value[0]):
            for item in value:
                fill(getattr(message, name).add(), item)
        case tuple():
            getattr(message, name).extend(value)
        case str() if name == "reason":
            setattr(message, name, value[:MAX_TEXT])
        case _ if is_dataclass(value):
            one_of = message.DESCRIPTOR.oneofs_by_name.get(name)
            part = getattr(message, name if one_of is None else snake(type(value).__name__))
            part.SetInParent()  # otherwise a message whose fields are all zero would be absent
            fill(part, value)
        case str() | float() | int() if (
            message.DESCRIPTOR.fields_by_name[name].message_type is not None
        ):
            setattr(getattr(message, name), "rule" if isinstance(value, str) else "value", value)
        case _:
            setattr(message, name, value)


# --- in -----------------------------------------------------------------------------------------------------------


def read(kind: type[T], message: Any, words: Words | None = None) -> T:
    """The dataclass of that kind from its protobuf message and its ``words``."""
    try:
        return kind(
            **{name: get(message, words) for name, get in _readers(cast(Hashable, kind)).items()}
        )
    except UsageError as error:  # each value is valid, but not their combination
        raise ProtocolError(f"{kind.__name__}: {error}") from None


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any, Words | None], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return {f.name: _reader(kind, f, hints[f.name]) for f in fields(kind)}


def _reader(kind: type, field: "Field[Any]", hint: Any) -> Callable[[Any, Words | None], Any]:
    name, where = field.name, f"{kind.__name__}.{field.name}"
    base, limits = _unwrapped(hint)
    members = get_args(base) if get_origin(base) in (Union, UnionType) else (base,)
    if Words in members:
        return lambda _message, words: _present(words, where, optional=NoneType in members)
    if any(is_dataclass(member) for member in members):
        kinds, optional = tuple(m for m in members if m is not NoneType), NoneType in members
        return lambda message, words: (
            None
            if optional and not message.HasField(name)
            else _read_part(kinds, message, name, where, words)
        )
    if get_origin(base) is tuple:
        item, item_limits = _unwrapped(get_args(base)[0])
        return lambda message, _: _read_tuple(
            getattr(message, name), item, item_limits, limits, where
        )
    if NoneType in members:  # an optional scalar
        only = next(m for m in members if m is not NoneType)
        return lambda message, _: (
            _scalar(getattr(message, name), only, limits, where) if message.HasField(name) else None
        )
    if len(members) > 1:  # a rule, or a number with its limits
        rules = {word for m in members if get_origin(m) is Literal for word in get_args(m)}
        number = next(_unwrapped(m)[1] for m in members if get_origin(m) is not Literal)
        return lambda message, _: _read_rule(getattr(message, name), rules, number, where)
    if field.default is not MISSING and base is str:
        return lambda message, _: text(getattr(message, name))
    return lambda message, _: _scalar(getattr(message, name), base, limits, where)


def _unwrapped(hint: Any) -> tuple[Any, tuple[BaseMetadata, ...]]:
    if get_origin(hint) is Annotated:
        base, *metadata = get_args(hint)
        inner, limits = _unwrapped(base)
        return inner, (*limits, *metadata)
    return hint, ()


def _read_part(
    kinds: tuple[Any, ...], message: Any, name: str, where: str, words: Words | None
) -> Any:
    if name in message.DESCRIPTOR.oneofs_by_name:
        chosen = message.WhichOneof(name)
        for kind in kinds:
            if snake(kind.__name__) == chosen:
                return read(kind, getattr(message, chosen), words)
        raise ProtocolError(f"{where} is of a kind that this version does not know.")
    if not message.HasField(name):
        raise ProtocolError(f"{where} is missing.")
    return read(kinds[0], getattr(message, name), words)


def _read_tuple(
    values: Any,
    item: Any,
    item_limits: tuple[BaseMetadata, ...],
    limits: tuple[BaseMetadata, ...],
    where: str,
) -> tuple[Any, ...]:
    for limit in limits:
        if isinstance(limit, Len) and not limit.min_length <= len(values) <= (
            limit.max_length or len(values)
        ):
            raise ProtocolError(
                f"{where} has {len(values)} entries; {limit.min_length} to {limit.max_length} fit."
            )
    if is_dataclass(item) and isinstance(item, type):
        return tuple(read(item, value) for value in values)
    return tuple(_scalar(value, item, item_limits, where) for value in values)


def _read_rule(
    message: Any, rules: set[str], limits: tuple[BaseMetadata, ...], where: str
) -> str | float:
    match message.WhichOneof("kind"):
        case "rule" if message.rule in rules:
            return str(message.rule)
        case "value":
            return float(_limited(message.value, limits, where))
        case None:
            raise ProtocolError(f"{where} is missing.")
        case _:
            raise ProtocolError(
                f"{where} is {message.rule[:40]!r}, which this version does not know."
            )


def _scalar(value: Any, kind: Any, limits: tuple[BaseMetadata, ...], where: str) -> Any:
    is_enum = isinstance(kind, type) and issubclass(kind, Enum)
    if is_enum or get_origin(kind) is Literal:
        if value not in (kind.__members__ if is_enum else get_args(kind)):
            raise ProtocolError(f"{where} is {value[:40]!r}, which this version does not know.")
        return kind[value] if is_enum else value
    return text(value) if kind is str else _limited(value, limits, where)


def _limited(value: Any, limits: tuple[BaseMetadata, ...], where: str) -> Any:
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


def _present(words: Words | None, where: str, *, optional: bool) -> Words | None:
    if words is None and not optional:
        raise ProtocolError(f"{where} is missing: a message without its words.")
    return words


def text(value: str) -> str:
    """A peer's text without control characters, which could move the cursor of a terminal."""
    if len(value) > MAX_TEXT:
        raise ProtocolError(f"a text of {len(value)} characters; at most {MAX_TEXT}.")
    return value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)
