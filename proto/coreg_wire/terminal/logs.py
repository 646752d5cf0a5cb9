"""One structured line an event on standard error, with its time: for services, at both ends alike.

A line says what happened, when, in which run, to which site, and in counts. It never holds a label, a feature, an id of
an instance or a key: whoever logs hands over fields, and none of these is one.
"""

import json
import sys
from collections.abc import MutableMapping
from typing import Any, Protocol, TextIO, cast

import structlog


class Log(Protocol):
    """Takes events: a name, and fields."""

    def info(self, event: str, **fields: Any) -> Any:
        """What is as it should be."""
        ...

    def warning(self, event: str, **fields: Any) -> Any:
        """What an operator should look at."""
        ...

    def error(self, event: str, **fields: Any) -> Any:
        """What an operator has to mend."""
        ...


class _StandardError:
    """Standard error as it is now: whoever draws in place puts itself before it, and lines go above the drawing."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        """So that a line is seen at once."""
        sys.stderr.flush()


_FIRST = ["timestamp", "level", "event"]


def _json_line(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> str:
    ordered = {name: fields.pop(name) for name in _FIRST if name in fields}
    return json.dumps({**ordered, **fields}, default=str)


def make_log(*, as_json: bool) -> Log:
    """logfmt (`key=value`), or JSON, a line an event; times are UTC, in ISO 8601."""
    logfmt = structlog.processors.LogfmtRenderer(key_order=_FIRST, drop_missing=True)
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(cast(TextIO, _StandardError())),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _json_line if as_json else logfmt,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(0),
        cache_logger_on_first_use=False,
    )
    return log
