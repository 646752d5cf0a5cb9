"""The site's data sets by name. A data set is read when a run needs it, and read again if its file has changed.

A run in progress keeps the data with which it began.
"""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from coreg_core.errors import BadData, UsageError
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import Prepared, prepare
from site_agent.data.sources import files_of

Stamp = tuple[tuple[int, int, int], ...]


class DataSets:
    """Reads data sets on demand and caches them.

    Parameters
    ----------
    inputs
        data sets by name.
    salt
        the site's secret for its data digest.
    """

    def __init__(self, inputs: Mapping[str, Inputs], salt: bytes, read: Callable[[Inputs, bytes], Prepared] = prepare):
        self._inputs, self.salt, self._prepare = dict(inputs), salt, read
        self._known: dict[str, tuple[Inputs, Stamp, Prepared]] = {}
        self._lock = threading.Lock()  # a run that needs a data set waits until it is read

    def relist(self, inputs: Mapping[str, Inputs]) -> None:
        """Replace the list of data sets, and drop those from the cache that it no longer has."""
        self._inputs = dict(inputs)
        self._known = {name: known for name, known in self._known.items() if name in inputs}

    def choose(self, name: str) -> str:
        """The data set of a plan: the one that it names, or the only one if it names none.

        Raises
        ------
        UsageError
            there is no such data set. The coordinator receives this text, so it names no other data set.
        """
        if name in self._inputs:
            return name
        if "" in self._inputs or (not name and len(self._inputs) == 1):  # a table without a name is for every plan
            return next(iter(self._inputs))
        if not name:
            raise UsageError("the plan names no data set, and this site has several.")
        raise UsageError(
            f"this site has no data set {name!r}. Correct `data` of the study, or rename the section [data.NAME] in agent.toml."
        )

    def inputs(self, name: str) -> Inputs:
        """How to read a data set."""
        return self._inputs[name]

    def get(self, name: str) -> tuple[Prepared, bool]:
        """A data set as it is on the disk now, and whether it was read again.

        Raises
        ------
        BadData
            the data set cannot be used. The text can name rows, so it must not leave the site.
        """
        with self._lock:
            inputs = self._inputs[name]
            stamp = _stamp(inputs)
            known = self._known.get(name)
            if known is not None and known[:2] == (inputs, stamp):
                return known[2], False
            prepared = self._prepare(inputs, self.salt)
            if _stamp(inputs) != stamp:
                raise BadData(
                    f"{inputs.table}: the file changed during reading. Write a new file beside it, then rename that."
                )
            self._known[name] = (inputs, stamp, prepared)
            return prepared, True


def _stamp(inputs: Inputs) -> Stamp:
    files = [path for source in (inputs.table, inputs.unlabelled) if source is not None for path in files_of(source)]
    shared = [] if inputs.shared is None else [_of(Path(inputs.shared), "Correct `shared`, or run the alignment first")]
    return (*map(_of, files), *shared)


def _of(path: Path, todo: str = "Correct the path") -> tuple[int, int, int]:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise BadData(f"{path}: no such file. {todo}.") from None
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror}).") from None
    return found.st_ino, found.st_size, found.st_mtime_ns
