"""The target and the id that a site leaves open: its study names them, or their usual names do."""

from collections.abc import Collection, Sequence

from site_agent.data.inputs import Inputs
from site_agent.data.site_tables import USUAL_TARGETS, WITHOUT_LABELS
from site_agent.data.sources import BadTable, Faults, TableFault, some
from site_agent.data.tables import Table, read_inputs

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
    chosen = {"id": inputs.id or id_column or _usual_id(table.columns), "target": inputs.target}
    if chosen["id"] is None:
        faults.add(_open(table, "the id column", "--id."))
    if open_target:
        chosen["target"] = _target(table, target, inputs)
    if open_target and inputs.labels and chosen["target"] is None:
        faults.add(_open(table, "the column to predict", f"--target.{WITHOUT_LABELS}"))
    faults.raise_any()
    return inputs.model_copy(update=chosen)


def _usual_id(columns: Sequence[str]) -> str | None:
    if USUAL_ID in columns:
        return USUAL_ID
    return _only({name for name in columns if name.endswith("_id")})


def _only(names: Collection[str]) -> str | None:
    if len(names) != 1:
        return None
    [name] = names
    return name


def _target(table: Table, target: str, inputs: Inputs) -> str | None:
    """The study's target or the usual one.

    Without labels the study's is no feature either: values in it are a fault. A usual one that is
    empty is the target.
    """
    usual = [name for name in USUAL_TARGETS if name in table]
    if inputs.labels:
        return target or _only(usual)
    if target in table and target not in inputs.drop:
        return target
    return next((name for name in usual if table.missing(name).all()), None)


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


def _open(table: Table, what: str, option: str) -> TableFault:
    columns = dict.fromkeys(table.columns)
    asked = f"which is {what}? The columns: {some(columns, 30)}."
    return TableFault(table.source, asked, f"Name it with {option}", kind="column")
