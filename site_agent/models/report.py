"""`coreg-agent report`: the findings of a site's runs, from its model files. Each run keeps its own baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coreg_core.errors import BadData, UsageError
from site_agent.models.file import load_model
from site_agent.models.findings import Found, told


@dataclass(frozen=True)
class RunFindings:
    """The findings of one run, and one of its model files."""

    run: str
    model: Path
    target: str
    found: Found

    @property
    def lines(self) -> list[str]:
        """A heading, the recommendation, and the errors beside this run's own "alone"."""
        return [f"run {self.run} ({self.model})", *told(self.found, self.target)]


def report(models: Sequence[Path]) -> list[RunFindings]:
    """The findings of each run, in the order of the arguments; a run with several model files counts once.

    Raises
    ------
    BadData
        no model has findings: its run had neither a path of λ nor a forecast.
    UsageError
        the models are of different sites.
    """
    loaded = [(path, load_model(path)) for path in models]
    if len(sites := sorted({model.site for _, model in loaded})) > 1:
        raise UsageError(f"these models are of {len(sites)} sites ({', '.join(sites)}). A report is about one site.")
    runs: dict[str, RunFindings] = {}
    for path, model in loaded:
        if model.found:
            runs.setdefault(model.run, RunFindings(model.run, path, model.target, model.found))
    if not runs:
        raise BadData(
            f"{', '.join(map(str, models))}: no report is in there. A local model has none: give the joined model of the "
            "same run (model.coreg). It has a report if the run had forecast = true (additive objective) or a path of couplings."
        )
    return list(runs.values())
