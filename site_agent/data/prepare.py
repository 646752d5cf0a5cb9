"""Read the operator's files into the arrays of a run, with notes for the operator.

Rows, ids and columns stay at the site.
"""

from dataclasses import dataclass, replace

from site_agent.data.aligned_ids import SharedIds
from site_agent.data.ids import ids_digest, own_name
from site_agent.data.inputs import Inputs
from site_agent.data.notation import flag
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.site_tables import SiteTable, load_site_tables
from site_agent.data.sources import BadTable, Faults, TableFault
from site_agent.site_data import PrivateData, row_keys


@dataclass(frozen=True)
class Prepared:
    """The arrays, the preprocessing that made them, and notes for the operator."""

    data: PrivateData
    preprocessing: Preprocessing
    table: SiteTable
    notes: tuple[str, ...]

    @property
    def labelled_and_shared(self) -> list[str]:
        return sorted({*self.table.labelled_ids} & {*self.table.unlabelled_ids})


def prepare(
    inputs: Inputs,
    salt: bytes = b"",
    aligned: SharedIds | None = None,
    classes: tuple[str, ...] = (),
) -> Prepared:
    """Read and preprocess a site's tables; ``aligned``: the ids that it shares, ``classes``: those
    of the study's target.
    """
    faults = Faults()
    table = load_site_tables(inputs, aligned, faults, classes)
    with faults.caught():
        preprocessing = _fitted(table, inputs)
    faults.raise_any()
    ids = table.unlabelled_ids
    digest = ids_digest(ids)
    data = PrivateData(
        X=preprocessing.transform(table.labelled),
        y=table.y,
        Z=preprocessing.transform(table.unlabelled),
        ids_digest=digest,
        salt=salt,
        positions=table.positions,
        row_keys=row_keys(table.labelled_ids, table.y, salt),
        instances=own_name(digest, salt),
        ids=ids,
        positive=inputs.positive,
        negative=table.negative,
        classes=classes,
        target=inputs.target or "",
    )
    notes = (*table.notes, *table.doubts, *preprocessing.notes)
    return Prepared(data, preprocessing, table, notes)


def _fitted(table: SiteTable, inputs: Inputs) -> Preprocessing:
    try:
        preprocessing = Preprocessing.fit(
            table.labelled,
            table.unlabelled,
            categorical=inputs.categorical,
            dates=inputs.dates,
            scale=inputs.scale,
        )
    except BadTable as error:
        if inputs.labels or inputs.target is not None:
            raise
        # Without labels an empty column can be the target, which no option names.
        raise BadTable(*map(_or_target, error.faults)) from None
    return replace(preprocessing, na_values=inputs.na_values)


def _or_target(fault: TableFault) -> TableFault:
    if fault.kind != "missing" or fault.column is None:
        return fault
    otherwise = fault.todo[:1].lower() + fault.todo[1:]
    named = flag("target", fault.column)
    return replace(fault, todo=f"If it is the target of the study, give {named}; else {otherwise}")
