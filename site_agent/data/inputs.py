"""A table of this site and how to read it: a section [data.NAME] of agent.toml, or the options of a command."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from site_agent.data.sources import Query, Source, at, source_of
from site_agent.data.tables import NA_VALUES

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
    return (
        str(value).strip().lower()
        if isinstance(value, bool)
        else str(value).strip()
        if isinstance(value, int | str)
        else value
    )


class Inputs(BaseModel):
    """One table. Training needs ``target``; scoring does not."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )

    table: Annotated[Path | Query, PlainValidator(a_source)] = Field(
        description="The site's table: CSV, Parquet, or 'sqlite:PATH?SELECT …'. Rows with an empty target are the shared "
        "unlabelled set, unless --unlabelled names it."
    )
    target: Text | None = Field(default=None, description="The column to predict.")
    positive: Annotated[str, BeforeValidator(_as_text)] = Field(
        default="",
        description="Of a yes/no target: the value that is read as 1, for example yes. The other one is 0.",
    )
    id: Text = Field(description="The column that names the instances; several as NAME+NAME.")
    weight: Text | None = Field(
        default=None,
        description="A column of positive numbers: how much each labelled row counts. For the additive objective only.",
    )
    unlabelled: Annotated[Path | Query | None, PlainValidator(a_source)] = Field(
        default=None, description="A table of the shared unlabelled set."
    )
    shared: Text | None = Field(
        default=None,
        description="The study whose alignment found the shared ids, or its file aligned.json. All rows with these ids are the "
        "shared unlabelled set.",
    )
    na_values: Words = Field(
        default=NA_VALUES,
        description="A cell text that means a missing value; repeatable. It replaces the default list: "
        f"{', '.join(NA_VALUES)}. An empty cell is always missing.",
    )
    categorical: Words = Field(
        default=(), description="A column to one-hot encode even if it holds numbers; repeatable."
    )
    dates: Words = Field(
        default=(),
        description="A column of dates: NAME for days since 1970-01-01, or NAME:PART+PART of days, year, month, weekday; "
        "repeatable.",
    )
    drop: Words = Field(default=(), description="A column to leave out; repeatable.")
    scale: bool = Field(default=True, description="Use features as they are, not standardised.")
    labels: bool = Field(
        default=True,
        description="This site has no labelled rows: every row of --data is shared (additive objective only).",
    )

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
