"""A table of this site and how to read it: a section [data.NAME] of agent.toml, or the options of a
command.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
)

from site_agent.data.dates import dates_of, layout_of
from site_agent.data.notation import Notation
from site_agent.data.sources import NA_VALUES, DatabaseQuery, Source, at, source_of

Text = Annotated[str, Field(min_length=1)]
Words = Annotated[tuple[Text, ...], Field(strict=False)]
Separator = Annotated[
    Literal[",", ";", "\t", "|"] | None,
    BeforeValidator(lambda text: "\t" if text == "tab" else text),
]
Decimal = Literal[".", ","] | None


def a_source(value: object, info: ValidationInfo) -> Source | None:
    """Parse a file name, or the address of a database with the query. A data frame is returned as
    it is.
    """
    sql = None
    if info.field_name == "table":
        sql = info.data.get("query")
    if isinstance(value, str | Path) and str(value):
        return source_of(str(value), sql or "")
    if (
        value is None
        or isinstance(value, DatabaseQuery)
        or (hasattr(value, "columns") and sql is None)
    ):
        return value  # type: ignore[return-value]
    raise ValueError("a path or the address of a database, in quotes; a data frame has no query")


def _as_text(value: object) -> object:
    """`true`, `1` and text, as the cell of a table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | str):
        return str(value).strip()
    return value


def _as_dates(value: Any) -> Any:
    """A mapping to formats or to tables of them, or the values of the option: COLUMN=FORMAT."""
    if isinstance(value, list | tuple):
        return dates_of(value)
    if not isinstance(value, Mapping):
        return value
    layouts = dict(value)
    for column, layout in value.items():
        if isinstance(layout, Mapping):
            layouts[column] = layout_of(layout)
    return layouts


class Inputs(BaseModel):
    """One table.

    A target and an id that are not given follow from the study or the table
    (`site_agent.data.open_columns`).
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, arbitrary_types_allowed=True
    )

    query: Text | None = None  # before the table, whose source has it
    table: Annotated[Path | DatabaseQuery, PlainValidator(a_source)]
    target: Text | None = None
    positive: Annotated[str, BeforeValidator(_as_text)] = ""
    id: Text | None = None
    unlabelled: Annotated[Path | DatabaseQuery | None, PlainValidator(a_source)] = None
    separator: Separator = None
    decimal: Decimal = None
    dates: Annotated[Mapping[Text, Text], BeforeValidator(_as_dates)] = {}
    na_values: Words = NA_VALUES
    categorical: Words = ()
    drop: Words = ()
    scale: bool = True
    labels: bool = True

    @property
    def notation(self) -> Notation:
        return Notation(self.separator, self.decimal)

    def at(self, base: Path) -> "Inputs":
        unlabelled = None
        if self.unlabelled is not None:
            unlabelled = at(self.unlabelled, base)
        return self.model_copy(update={"table": at(self.table, base), "unlabelled": unlabelled})
