"""One column of a table: its cells as texts and as numbers, and which of them are missing.

A cell is a text without white space around it. An empty cell is missing, and so is each value of
``na_values``, in whichever way it is written: -99 and -99.00 are one value. In an id only an empty
cell is missing. Texts and numbers are made when they are asked for, so the faults of a column that
is not used do not matter.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from coreg_core.arrays import Arr
from site_agent.data.cell_text import PLAIN, canonical, text_of, texts_of_column
from site_agent.data.notation import Decimals, as_numbers
from site_agent.data.sources import BadTable, TableFault

EXACT = 1e15  # a larger id that was a number may have lost digits
_ROUNDED = re.compile(r"\d[.,]\d+[eE]\+?[1-9]\d|\d[eE]\+[1-9]\d")  # 1.10105E+17; 2E15 is a code
AS_PROGRAMS_WRITE = Decimals()


@dataclass(eq=False)
class Cells:
    """One column of a source: a series of polars or pandas, a list of texts, or a function that
    reads a series of texts.

    ``numeric`` is a series of numbers, null where a cell is empty; None if a cell is no number.
    """

    name: str
    raw: Any
    source: str
    na_values: frozenset[str] = frozenset()
    decimals: Decimals = AS_PROGRAMS_WRITE
    numeric: Any = None

    @cached_property
    def shown(self) -> list[str]:
        """Each cell as the source shows it; "" if it is empty. `BadTable`: it is no text."""
        try:
            return [(text_of(value) or "").strip() for value in values_of(self.raw)]
        except TypeError as error:
            kind = what = str(error)
            if isinstance(self.raw, pl.Series):
                what = str(self.raw.dtype)
                kind = str(self.raw.dtype.base_type())
            todo = "Leave the column out, or write it with numbers or text."
            what = f"holds {what}, not numbers or text."
            raise BadTable(TableFault(self.source, what, todo, kind, self.name)) from None

    @cached_property
    def own(self) -> list[str]:
        """The one text of each value; "" if the cell is empty."""
        return texts_of_column(self.shown, self.decimals.mark)

    @cached_property
    def missing(self) -> NDArray[np.bool_]:
        codes = [float(text) for text in self.na_values if PLAIN.fullmatch(text)]
        if self.numeric is not None and not np.isin(self._floats, codes).any():
            return np.isnan(self._floats)
        missing = {""}
        for text in set(self.shown):
            if {text, canonical(text, self.decimals.mark)} & self.na_values:
                missing.add(text)
        return np.array([text in missing for text in self.shown], dtype=np.bool_)

    @cached_property
    def _floats(self) -> Arr:
        numeric = self.numeric
        if numeric is None:
            texts = pl.DataFrame({"": self.shown}, schema={"": pl.String})
            numeric = texts.select_seq(as_numbers(self.decimals.mark)).to_series()
        return np.asarray(numeric.to_numpy(), dtype=np.float64)

    @cached_property
    def numbers(self) -> Arr:
        """The numbers. NaN: missing, or no finite number."""
        usable = np.isfinite(self._floats) & ~self.missing
        return np.where(usable, self._floats, np.nan)

    @property
    def rounded(self) -> str:
        """A cell that shows that long ids became rounded numbers; "" without one."""
        if str(getattr(self.raw, "dtype", "")).lower().startswith("float"):
            large = np.flatnonzero(np.abs(self._floats) >= EXACT)
            if len(large):
                return str(self.shown[large[0]])
            return ""
        return next(filter(_ROUNDED.fullmatch, self.shown), "")


def is_numeric(raw: Any) -> bool:
    """Whether a series of polars or pandas has a type of numbers."""
    if isinstance(raw, pl.Series):
        return raw.dtype.is_numeric()
    return isinstance(raw.dtype, np.dtype) and raw.dtype.kind in "iuf"


def values_of(raw: Any) -> Any:
    """The values of a column, None where one is missing; those of float32 as such."""
    if callable(raw):
        return raw().to_list()
    if isinstance(raw, list):
        return raw
    if is_numeric(raw) and str(raw.dtype).lower() == "float32":
        return raw.to_numpy()
    if isinstance(raw, pl.Series):
        return raw.to_list()
    return raw.astype(object).where(raw.notna(), None).tolist()
