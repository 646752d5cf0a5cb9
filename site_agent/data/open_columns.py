"""The target and the id that a site leaves open: its study names them, or their usual names do."""

from collections.abc import Sequence

from site_agent.data.inputs import Inputs
from site_agent.data.site_tables import WITHOUT_LABELS
from site_agent.data.sources import BadTable, Fault, Faults, some
from site_agent.data.tables import Table, read_inputs

USUAL_TARGETS = ("y", "target", "label")
USUAL_ID = "id"


def named(inputs: Inputs, target: str = "", id_column: str = "", *, trains: bool = True) -> Inputs:
    """The inputs with both columns; ``target`` and ``id_column`` are the study's, "" where it names
    none.
    """
    open_target = trains and inputs.target is None
    if inputs.id is not None and not open_target:
        return inputs
    table = read_inputs(inputs, Faults(), joined=False)
    faults = Faults()
    chosen = dict[str, str | None]()
    if inputs.id is None:
        chosen["id"] = id_column or _usual_id(table.columns)
        if chosen["id"] is None:
            faults.add(_open(table, "the id column", "--id."))
    if open_target and not inputs.labels:
        chosen["target"] = _empty_target(table, target)
    elif open_target:
        chosen["target"] = target or _only([n for n in USUAL_TARGETS if n in table.columns])
        if chosen["target"] is None:
            faults.add(_open(table, "the column to predict", f"--target.{WITHOUT_LABELS}"))
    faults.raise_any()
    return inputs.model_copy(update=chosen)


def _usual_id(columns: Sequence[str]) -> str | None:
    if USUAL_ID in columns:
        return USUAL_ID
    return _only(list({name for name in columns if name.endswith("_id")}))


def _only(names: Sequence[str]) -> str | None:
    return names[0] if len(names) == 1 else None


def _empty_target(table: Table, target: str) -> str | None:
    """The target's column of a site without labels, which is empty and no feature."""
    names = [name for name in (target, *USUAL_TARGETS) if name in table.columns]
    return next((name for name in names if table.missing(name).all()), None)


def left_open(inputs: Inputs, *, trains: bool = True) -> BadTable | None:
    """The columns that a study has to name, or this site; None if both are known.

    A column that the site names and its table lacks is raised: no study can mend that.
    """
    table = read_inputs(inputs, joined=False)
    faults = Faults()
    with faults.caught():
        if inputs.id is not None:
            table.with_id(inputs.id).require([inputs.id], "the id column")
    with faults.caught():
        if trains and inputs.labels and inputs.target is not None:
            table.require([inputs.target], "the target", WITHOUT_LABELS)
    faults.raise_any()
    try:
        named(inputs, trains=trains)
    except BadTable as columns:
        return columns
    return None


def _open(table: Table, what: str, option: str) -> Fault:
    columns = dict.fromkeys(table.columns)
    asked = f"which is {what}? The columns: {some(columns, 30)}."
    return Fault(table.source, asked, f"Name it with {option}", kind="column")
