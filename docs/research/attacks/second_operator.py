"""A second operator on instances that were summed before: other labels at one site, another ridge, or one instance less.

The difference b′ − b of two sums comes from the one site whose labels changed, and lies in its range. As many such runs as
the site has columns disclose the range. The agent's record of its operator prevents the second run before its first answer.
"""

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from federation import FEATURES, SITES, VICTIM, Seen, Site, data_of, plan_of, site_of, truth, watched

from coreg_core.protocol.plan import Plan
from site_agent.ledger.operators import OperatorRecords
from site_agent.machine.operators import operator_of
from site_agent.machine.site_data import PrivateData


def without_last(data: PrivateData) -> PrivateData:
    """One shared instance less."""
    return replace(data, Z=data.Z[:-1], ids=data.ids[:-1], ids_digest="others")


def elsewhere(data: PrivateData) -> PrivateData:
    """Entirely different shared instances."""
    return replace(data, Z=data.Z[::-1] + 1.0, ids=tuple(f"q{name}" for name in data.ids), ids_digest="others")


def relabelled(data: PrivateData, seed: int) -> PrivateData:
    """The same rows with other labels."""
    return replace(data, y=data.y + np.random.default_rng(seed).normal(size=len(data.y)))


class Office:
    """Four sites, with or without records of their operators."""

    def __init__(self, folder: Path, *, records: bool):
        self._folder, self._records, self._runs = folder, records, 0

    def run(self, plan: Plan, **changed: PrivateData) -> Seen:
        """A run with these sites' data changed."""
        self._runs += 1
        plan = replace(plan, run=f"run-{self._runs}")
        return watched(plan, {name: self._site(name, changed.get(name, data_of(name))) for name in SITES})

    def _site(self, name: str, data: PrivateData) -> Site:
        def admit(plan: Plan, sites: tuple[str, ...]) -> str | None:
            records = OperatorRecords(self._folder / name)
            return records.admit(operator_of(plan, data, sites), plan.run)

        return site_of(name, data, **({"admit": admit} if self._records else {}))


def affine(seen: Seen) -> Any:
    """Σ m_v."""
    return next(total[:, 0] for asked, total in seen.rounds if asked.question.part == "affine")


def attack() -> dict[str, Any]:
    """The part of b's range that the differences miss (0: all is known), and the replies of an agent with a record."""
    plan = plan_of("secure")
    range_of = np.linalg.eigh(truth(VICTIM, plan))[1][:, -FEATURES:]
    with tempfile.TemporaryDirectory() as name:
        free = Office(Path(name) / "free", records=False)
        first = affine(free.run(plan))
        apart = [affine(free.run(plan, b=relabelled(data_of(VICTIM), seed))) - first for seed in range(FEATURES)]
        span = np.linalg.qr(np.stack(apart, axis=1))[0]
        missed = float(np.linalg.norm(range_of - span @ (span.T @ range_of)))
        strict = Office(Path(name) / "strict", records=True)
        objective = replace(plan.objective, ridge=0.7)  # type: ignore[type-var]
        told = {
            "first": strict.run(plan),
            "again": strict.run(plan),
            "labels": strict.run(plan, b=relabelled(data_of(VICTIM), 0)),
            "ridge": strict.run(replace(plan, objective=objective)),
            "instance": strict.run(plan, **{name: without_last(data_of(name)) for name in SITES}),
            "elsewhere": strict.run(plan, **{name: elsewhere(data_of(name)) for name in SITES}),
        }
        found = {how: {"reason": seen.reason, "sums": len(seen.rounds)} for how, seen in told.items()}
    return {"range missed": missed, **found}


if __name__ == "__main__":
    for how, said in attack().items():
        print(how, said)  # noqa: T201
