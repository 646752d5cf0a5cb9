"""Files that people write: TOML with faults by key, and plans as JSON."""

import json
import re
import reprlib
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coreg_core.errors import BadData, UsageError
from coreg_core.plan import Plan, plan_fault, plan_from_dict
from coreg_wire.transport.fields import fill, read
from coreg_wire.v1 import federation_pb2 as pb

# Names that pydantic gives to the members of a union.
# A line or a value that is not repeated: it can hold a secret, or the password of an address.
_PRIVATE = re.compile(r"secret|password|:/", re.IGNORECASE)
_MEMBER = re.compile(r"(literal|constrained|function|is-instance)[-\[]|(float|int|str|bool)$")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary. Editors on Windows write a byte order mark before it."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such file in {path.resolve().parent}. Go to its folder, or correct the"
            " path."
        ) from None
    except IsADirectoryError:
        raise UsageError(f"{path}: this is a folder. Name the file in it.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {_syntax(str(error), path)}") from None
    except (RecursionError, ValueError):  # or an integer of thousands of digits
        raise UsageError(f"{path}: nested too deeply, or a number is too long.") from None


def toml(value: bool | int | float | str | Sequence[str | float]) -> str:
    """A value in TOML. Only infinities and NaN differ from JSON."""
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _syntax(message: str, path: Path) -> str:
    """A fault of syntax, with its line and a hint for the two commonest."""
    at = re.search(r"\(at line (\d+), column \d+\)", message)
    hints = {
        "Invalid value": " Write true, false, a number, or a text in quotes.",
        "Cannot overwrite": (
            " The key is set twice, or has a section of its name too: remove one of them."
        ),
    }
    hint = next((text for start, text in hints.items() if message.startswith(start)), "")
    lines = path.read_text(encoding="utf-8-sig").splitlines()
    line = lines[int(at[1]) - 1].strip() if at and int(at[1]) <= len(lines) else ""
    shown = f" in `{line[:80]}`" if "=" in line and not _PRIVATE.search(line) else ""
    return f"not TOML: {message}{shown}.{hint}"


def unknown_key(key: str, known: Collection[str], section: str) -> str:
    """The fault and the correction of an unknown key of a section; a known name "section.key" tells
    where the key belongs.
    """
    places = {name.rpartition(".")[2]: name.rpartition(".")[0] for name in known}
    close = next(iter(get_close_matches(key, list(places), n=1)), "")
    if close == key:
        below = dict.fromkeys(
            name.partition(".")[2] for name in known if name.startswith(f"{key}.")
        )
        if below and key == "model":  # its objective decides which keys it has
            return "this is a section: write [model], and below it its keys"
        if below:
            return f"this is a section: write [{key}], and below it its keys ({', '.join(below)})"
        if places[key] == section:
            decides = " (its `objective` decides which keys it has)" if section == "model" else ""
            return f"this key does not go with the other keys of [{section}]{decides}"
        return (
            "this key belongs in"
            f" {f'the section [{places[key]}]' if places[key] else 'the top level of the file'}"
        )
    return f"unknown key; did you mean {close}?" if close else "unknown key"


def file_faults(
    path: Path,
    error: ValidationError,
    keys: Iterable[str],
    skip: tuple[str, ...] = (),
) -> UsageError:
    """Every fault of a file with its key, as one error.

    In ``skip`` a location's second part is the member of a union.
    """
    keys = list(keys)
    faults = dict[str, list[str]]()
    for fault in error.errors():  # one for each member of a union ("paper" or a number)
        if fault["type"] == "too_short" and fault["input"]:
            continue  # entries that were faults themselves
        location = tuple(part for part in fault["loc"] if not _MEMBER.match(str(part)))
        if location[:1] and location[0] in skip:
            location = (location[0], *location[2:])
        where, text = _key_and_message(fault, location, keys)
        faults.setdefault(where, []).append(text)
    lines = "\n".join(
        f"  {where}: {'; or '.join(dict.fromkeys(messages))}" for where, messages in faults.items()
    )
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    return UsageError(f"{path}: {count}:\n{lines}")


def _key_and_message(
    fault: Mapping[str, Any],
    location: tuple[int | str, ...],
    known: list[str],
) -> tuple[str, str]:
    """The key of a fault with its value, and what is wrong with it."""
    parts = [str(part) for i, part in enumerate(location) if i < 3 or isinstance(part, int)]
    where = ".".join(parts) or "the file"
    if fault["type"] == "extra_forbidden":
        section = ".".join(map(str, location[:-1]))
        return where, unknown_key(str(location[-1]), known, section)
    text = _plainly(fault["msg"])
    is_section = any(name.startswith(f"{where}.") for name in known)
    if is_section and fault["type"] in ("missing", "model_type"):
        text = f"a section is needed: write [{where}], and its keys below it"
    if isinstance(fault["input"], dict) or _PRIVATE.search(str(fault["input"])):
        return where, text
    return f"{where} = {reprlib.repr(fault['input'])}", text


def _plainly(message: str) -> str:
    """A message of pydantic for a person who has not heard of it."""
    message = message.partition(", unable to parse")[0].removeprefix("Value error, ")
    plain = {
        "Field required": "this key is missing",
        "Tuple should have at least 1 item after validation, not 0": "expected at least one entry",
        "a valid tuple": "a list",
        "Input is not a path for <class 'pathlib.Path'>": "expected a path, in quotes",
        "Input should be": "expected",
        "a valid": "a",
        "integer": "whole number",
        "a boolean": "true or false, without quotes",
        "String should match pattern '^[0-9a-f]{64}$'": (
            "expected a fingerprint, 64 digits of 0-9 and a-f"
        ),
    }
    for theirs, ours in plain.items():
        message = message.replace(theirs, ours)
    return message


def read_plan(path: Path) -> Plan:
    """Read a plan, or an object with a key "plan", as `coreg-agent pending --json` and `show
    --json` print it.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        plan = plan_from_dict(value.get("plan", value))
        message = pb.Plan()
        fill(message, plan)
        plan = read(Plan, message)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, BadData) as error:
        raise UsageError(
            f"{path}: not a plan ({type(error).__name__}: {error}). `coreg-coordinator plan"
            " federation.toml` writes one."
        ) from None
    if (fault := plan_fault(plan)) is not None:
        raise UsageError(f"{path}: {fault}")
    return plan
