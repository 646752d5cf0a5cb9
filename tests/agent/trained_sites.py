"""Three sites with files that trained together, in memory: their tables, and what each agent has at
the end of a run.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coreg_core.additive.training import TrainedFederation, train
from coreg_core.evaluation import fit_probability
from coreg_core.objectives.additive import IN_MEMORY, Additive
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.terms import Membership
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import Prepared, prepare
from site_agent.machine.additive import site_rows
from site_agent.machine.results import AdditiveResult, JudgedModels
from site_agent.models.store import ModelStore, RunFacts

SITES = ("a", "b", "c")
SHARED = 150
JUDGED = 200
PLAN = Plan("run-1", "tests", Membership(SITES, 3), Additive())


def tables(
    folder: Path, labels: tuple[int, ...] = (60, 30, 2), values: tuple[str, str] | None = None
) -> dict[str, Path]:
    """SITE.csv with labelled rows, most of them shared, SITE-shared.csv, and SITE-judged.csv with
    the labels of other rows.

    Each site has two columns. A label is a sum of functions of three sites' columns, or one of
    ``values`` by its sign.
    """
    rng = np.random.default_rng(4)
    out = {}
    X = rng.normal(size=(SHARED + sum(labels) + JUDGED, 6))
    X[:, ::2] = np.round(
        X[:, ::2], 1
    )  # a threshold between two values is often a third one, up to rounding
    y = 5.0 + np.sin(X[:, 0]) + X[:, 2] + 0.5 * X[:, 4] + 0.1 * rng.normal(size=len(X))
    if values is None:
        cells = [repr(float(label)) for label in y]
    else:
        cells = [values[int(label > 5.0)] for label in y]
    for v, (site, n) in enumerate(zip(SITES, labels, strict=True)):
        common = 50 * v + np.arange(n * 4 // 5)
        private = SHARED + sum(labels[:v]) + np.arange(n - n * 4 // 5)
        rows = {
            site: [*common, *private],
            f"{site}-shared": range(SHARED),
            f"{site}-judged": range(-JUDGED, 0),
        }
        for name, which in rows.items():
            text = ""
            for i in which:
                label = cells[i]
                if "shared" in name:
                    label = ""
                text += f"p{i},{X[i, 2 * v]},{X[i, 2 * v + 1]},{label}\n"
            out[name] = folder / f"{name}.csv"
            out[name].write_text(f"id,u,v,y\n{text}")
    return out


def prepared_sites(paths: dict[str, Path], positive: str = "") -> dict[str, Prepared]:
    """The tables as each agent reads them."""
    given = {"target": "y", "id": "id", "positive": positive}
    return {
        s: prepare(Inputs(table=paths[s], unlabelled=paths[f"{s}-shared"], **given), s.encode())
        for s in SITES
    }


@dataclass(frozen=True)
class Trained:
    """What each site has, by its name."""

    folder: Path
    prepared: dict[str, Prepared]
    results: dict[str, AdditiveResult]
    fitted: TrainedFederation

    def write(
        self, site: str, *, compared: bool = True, training: str = "", **changes: Any
    ) -> tuple[tuple[Path, ...], list[str]]:
        """The files of its model store, the joined model first, and the notes; with ``changes`` of
        the result.
        """
        notes = list[str]()
        store = ModelStore(site, self.folder / f"{site}-models")
        result = replace(self.results[site], **changes)
        prepared = self.prepared[site]
        facts = RunFacts("y", "id", compared, training)
        files = store.put_models(PLAN, result, prepared, facts, notes.append)
        return files, notes


def trained(
    folder: Path,
    labels: tuple[int, ...] = (60, 30, 2),
    values: tuple[str, str] | None = None,
    **rules: Any,
) -> Trained:
    """Sites with so many labels each, trained with these rules."""
    positive = ""
    if values is not None:
        positive = values[1]
    sites = prepared_sites(tables(folder, labels, values), positive)
    rows = [site_rows(sites[site].data)[0] for site in SITES]
    fitted = train(rows, SHARED, rules=replace(IN_MEMORY, **rules))
    results = {}
    for site, own, at in zip(SITES, rows, fitted.sites, strict=True):
        left = [at.verdict.left_out.get(key, np.zeros(0)) for key in ("joined", "score", "local")]
        curves = ()
        if values:
            curves = tuple(fit_probability(own.y[: len(r)] - r, own.y[: len(r)]) for r in left)
        outcomes = {
            "judged": JudgedModels((at.verdict,), own.y),
            "probabilities": curves,
            "name": "these sums",
            "sites": SITES,
        }
        results[site] = AdditiveResult(
            outcome=Outcome.CONVERGED, reason="", model=at.model, **outcomes
        )
    return Trained(folder, sites, results, fitted)
