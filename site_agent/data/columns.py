"""Which columns are the id and the target of a table: as the site says, else the study, else the usual names."""

from site_agent.data.errors import Fault, Faults, some
from site_agent.data.inputs import Inputs
from site_agent.data.tables import read_table

USUAL_TARGETS = ("y", "target", "label")
USUAL_ID = "id"


def named(inputs: Inputs, target: str = "", id_column: str = "", *, trains: bool = True) -> Inputs:
    """The inputs with both columns; ``target`` and ``id_column`` are the study's, "" where it names none.

    Raises
    ------
    BadTable
        no column is meant beyond doubt; the text lists the columns. A scoring or an alignment needs no target.
    """
    open_target = trains and inputs.target is None and inputs.labels
    if inputs.id is not None and not open_target:
        return inputs
    columns = list(dict.fromkeys(read_table(inputs.table, Faults(), inputs.na_values, inputs.notation).columns))
    found, source = Faults(), str(inputs.table)
    chosen = {"id": inputs.id, "target": inputs.target}
    if inputs.id is None:
        ends = [name for name in columns if name.endswith("_id")]
        usual = [USUAL_ID] if USUAL_ID in columns else ends
        chosen["id"] = id_column or (usual[0] if len(usual) == 1 else None)
        if chosen["id"] is None:
            found.add(_open(source, "the id column", "--id", columns))
    if open_target:
        usual = [name for name in USUAL_TARGETS if name in columns]
        chosen["target"] = target or (usual[0] if len(usual) == 1 else None)
        if chosen["target"] is None:
            found.add(_open(source, "the column to predict", "--target", columns))
    found.raise_any()
    return inputs.model_copy(update=chosen)


def _open(source: str, what: str, option: str, columns: list[str]) -> Fault:
    return Fault(
        source, f"which is {what}? The columns: {some(columns, 30)}.", f"Name it with {option}.", kind="column"
    )
