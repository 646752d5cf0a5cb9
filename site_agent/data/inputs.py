"""A table of this site and how to read it: a section [data.NAME] of agent.toml, or the options of a command."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from site_agent.data.notation import Notation, dates_of
from site_agent.data.sources import NA_VALUES, Query, Source, at, source_of

Text = Annotated[str, Field(min_length=1)]
Words = Annotated[tuple[Text, ...], Field(strict=False)]


def a_source(value: object) -> Source | None:
    """Parse a file name or a query; a value that is already one is returned as it is."""
    if value is None or isinstance(value, Path | Query):
        return value
    if not isinstance(value, str) or not value:
        raise ValueError("a path or a query, in quotes")
    return source_of(value)


def _as_text(value: object) -> object:
    """`true`, `1` and text, as the cell of a table."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value).strip() if isinstance(value, int | str) else value


def _as_dates(value: Any) -> Any:
    """A mapping, or the values of the option: COLUMN=FORMAT."""
    return dates_of(value) if isinstance(value, list | tuple) else value


class Inputs(BaseModel):
    """One table. Training needs ``target``; scoring does not."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )

    table: Annotated[Path | Query, PlainValidator(a_source)]
    target: Text | None = None
    positive: Annotated[str, BeforeValidator(_as_text)] = ""
    id: Text
    unlabelled: Annotated[Path | Query | None, PlainValidator(a_source)] = None
    shared: Text | None = None
    separator: Annotated[
        Literal[",", ";", "\t"] | None, BeforeValidator(lambda text: "\t" if text == "tab" else text)
    ] = None
    decimal: Literal[".", ","] | None = None
    dates: Annotated[Mapping[Text, Text], BeforeValidator(_as_dates)] = {}
    na_values: Words = NA_VALUES
    categorical: Words = ()
    drop: Words = ()
    scale: bool = True
    labels: bool = True

    @property
    def notation(self) -> Notation:
        """What is said about the files of the table."""
        return Notation(self.separator, self.decimal)

    def at(self, base: Path) -> "Inputs":
        """The same inputs, with paths relative to ``base``."""
        unlabelled = None if self.unlabelled is None else at(self.unlabelled, base)
        return self.model_copy(update={"table": at(self.table, base), "unlabelled": unlabelled})

    def aligned(self, models: Path, base: Path) -> "Inputs":
        """The same inputs with the file of the shared ids: that of the study's current run, or one relative to ``base``."""
        if self.shared is None:
            return self
        named = self.shared.endswith(".json") or (base / self.shared).is_file()
        path = base / self.shared if named else models / self.shared / "current" / "aligned.json"
        return self.model_copy(update={"shared": str(path)})
