"""The data sets of a site: each is read when a run needs it, and again if its file has changed."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from coreg_core.errors import BadData, UsageError
from coreg_core.objectives.alignment import IdRule
from site_agent.data.aligned_ids import SharedIds, read_ids
from site_agent.data.databases import digest, one_snapshot
from site_agent.data.inputs import Inputs
from site_agent.data.open_columns import named
from site_agent.data.prepare import Prepared, prepare
from site_agent.data.sources import DatabaseQuery, Source

Stamp = tuple[tuple[int, int, int] | str, ...]
T = TypeVar("T")


class DataSets:
    """Reads data sets on demand, and keeps what it read until the file, its settings or the
    question change.
    """

    def __init__(
        self,
        inputs: Mapping[str, Inputs],
        salt: bytes,
        read: Callable[..., Prepared] = prepare,
    ):
        self.salt = salt
        self._inputs = dict(inputs)
        self._prepare = read
        self._values: dict[tuple[str, ...], tuple[Any, Any]] = {}  # from what it was made, and it
        self._lock = threading.RLock()  # a run that needs a data set waits until it is read

    def choose(self, name: str) -> str:
        """The data set of a plan: the one that it names, or the only one if it names none.

        The error leaves the site.
        """
        if name in self._inputs:
            return name
        if "" in self._inputs:  # a table without a name is for every plan
            return ""
        if not name and len(self._inputs) == 1:
            return next(iter(self._inputs))
        if not name:
            raise UsageError("the plan names no data set, and this site has several.")
        raise UsageError(
            f"this site has no data set {name!r}. Add [data.{name}] to its agent.toml and start the"
            " agent again, or correct `data` of the study."
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._inputs)

    def inputs(self, name: str) -> Inputs:
        return self._inputs[name]

    def named(
        self, name: str, target: str = "", id_column: str = "", *, trains: bool = True
    ) -> Inputs:
        """... with the columns that the site leaves open: see `open_columns.named`."""
        inputs = self._inputs[name]

        def make() -> Inputs:
            return named(inputs, target, id_column, trains=trains)

        return self.cached((name, "named"), inputs, (inputs, target, id_column, trains), make)[0]

    def ids(self, name: str, inputs: Inputs, rule: IdRule) -> tuple[str, ...]:
        return self.cached((name, "ids", rule), inputs, inputs, lambda: read_ids(inputs, rule))[0]

    def get(
        self,
        name: str,
        inputs: Inputs | None = None,
        aligned: SharedIds | None = None,
        classes: tuple[str, ...] = (),
    ) -> tuple[Prepared, bool]:
        """A data set as it is on the disk now, and whether it was read again.

        Errors can name rows: they must not leave.
        """
        own = inputs or self._inputs[name]

        def make() -> Prepared:
            return self._prepare(own, self.salt, aligned, classes)

        return self.cached((name, "rows"), own, (own, aligned, classes), make)

    def cached(
        self, key: tuple[str, ...], inputs: Inputs, asked: Any, make: Callable[[], T]
    ) -> tuple[T, bool]:
        """``make()`` or what it made before from the same question and files; and whether it is
        new.
        """
        with self._lock, one_snapshot():
            question = (asked, _stamp(inputs))
            before, value = self._values.get(key, (None, None))
            if before == question:
                return value, False
            value = make()
            if _stamp(inputs) != question[1]:
                raise BadData(
                    f"{inputs.table}: the file changed during reading. Write a new file beside it,"
                    " then rename that."
                )
            self._values[key] = (question, value)
            return value, True


def _stamp(inputs: Inputs) -> Stamp:
    sources: tuple[Any, ...] = (inputs.table, inputs.unlabelled)  # of data frames too
    return tuple(_version(source) for source in sources if isinstance(source, Path | DatabaseQuery))


def _version(source: Source) -> tuple[int, int, int] | str:
    """What differs once a file is written, or once a query has other rows."""
    if isinstance(source, DatabaseQuery):
        return digest(source)
    try:
        status = source.stat()
    except FileNotFoundError:
        raise BadData(f"{source}: no such file. Correct the path.") from None
    except OSError as error:
        raise BadData(f"{source}: cannot be read ({error.strerror}).") from None
    return status.st_ino, status.st_size, status.st_mtime_ns
