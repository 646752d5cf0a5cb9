"""A synthetic shared set: instances drawn from published ranges, the same at every site, for sites without common individuals.

Source: Brefeld et al. (2006), section 4.1. Every column has its own stream of uniform numbers from SHAKE-256, so that all sites
have the same rows whatever their software. No table is read. The ids contain a digest of the definitions: sites with different
definitions have different ids, and a run refuses them.
"""

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator
from scipy.special import ndtr, ndtri

from coreg_core.errors import UsageError
from coreg_core.numerics.arrays import Arr
from coreg_wire.files.toml_file import file_faults, read_toml

_DIGITS = ".9g"  # far above the rounding in which platforms differ


class Column(BaseModel):
    """A distribution: uniform on ``range``; normal with ``mean`` and ``sd``, cut at ``range``; or one of ``values``."""

    model_config = ConfigDict(extra="forbid")

    range: tuple[FiniteFloat, FiniteFloat] | None = None
    mean: FiniteFloat | None = None
    sd: Annotated[FiniteFloat, Field(gt=0)] | None = None
    whole: bool = False
    values: Annotated[list[str | int | FiniteFloat], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _of_one_kind(self) -> "Column":
        if (self.values is None) == (self.range is None):
            raise ValueError("needs either range = [LOW, HIGH] or values = [...]")
        if (self.mean is None) != (self.sd is None):
            raise ValueError("mean and sd go together")
        if self.range is None and (self.mean is not None or self.whole):
            raise ValueError("mean, sd and whole need a range")
        if self.range is not None and not self.range[0] < self.range[1]:
            raise ValueError("range needs LOW below HIGH")
        return self

    def texts(self, uniform: Arr) -> list[str]:
        """Cells for numbers that are uniform on (0, 1)."""
        if self.values is not None:
            return [str(self.values[int(u * len(self.values))]) for u in uniform.tolist()]
        assert self.range is not None
        low, high = self.range
        if self.mean is None or self.sd is None:
            drawn = low + uniform * (high - low)
        else:
            ends = ndtr([(low - self.mean) / self.sd, (high - self.mean) / self.sd])
            drawn = np.clip(self.mean + self.sd * ndtri(ends[0] + uniform * (ends[1] - ends[0])), low, high)
        return [format(x, ".0f" if self.whole else _DIGITS) for x in drawn.tolist()]


class Definitions(BaseModel):
    """The file of `coreg-agent synthesize`: published, and the same at every site."""

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,60}$")]
    rows: Annotated[int, Field(ge=1, le=1_000_000)]
    id: str = "id"
    columns: Annotated[dict[str, Column], Field(min_length=1)]

    @model_validator(mode="after")
    def _id_apart(self) -> "Definitions":
        if self.id in self.columns:
            raise ValueError(f"{self.id!r} is the id column: give it another name by id = ...")
        return self

    @classmethod
    def read(cls, path: Path) -> "Definitions":
        """
        Raises
        ------
        UsageError
            the file is missing, or has a fault; the error names each key.
        """
        plain: dict[str, Any] = read_toml(path)
        try:
            return cls.model_validate(plain)
        except ValidationError as error:
            raise file_faults(path, error, [*cls.model_fields, *Column.model_fields]) from None

    @property
    def digest(self) -> str:
        """Eight characters that stand for the file in the ids."""
        words = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(words.encode()).hexdigest()[:8]

    def ids(self) -> list[str]:
        """The ids of the instances."""
        return [f"{self.name}-{self.digest}-{i:07d}" for i in range(self.rows)]

    def cells(self, column: str) -> list[str]:
        """The cells of a column: they depend on its own definition, the name and the number of rows."""
        stream = hashlib.shake_256(json.dumps([self.name, column]).encode()).digest(8 * self.rows)
        uniform = ((np.frombuffer(stream, dtype="<u8") >> np.uint64(11)) + 0.5) * 2.0**-53
        return self.columns[column].texts(np.minimum(uniform, 1.0 - 2.0**-53))

    def text(self) -> str:
        """The table as CSV."""
        out = io.StringIO()
        writer = csv.writer(out)
        writer.writerow([self.id, *self.columns])
        writer.writerows(zip(self.ids(), *(self.cells(name) for name in self.columns), strict=True))
        return out.getvalue()

    def write(self, path: Path) -> None:
        """
        Raises
        ------
        UsageError
            another file is there, which stays, or the path cannot be written.
        """
        text = self.text()
        try:
            with path.open("x", newline="", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            if path.is_dir() or path.read_bytes() != text.encode():
                raise UsageError(f"{path}: exists and holds something else. Give another path.") from None
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror}).") from None
