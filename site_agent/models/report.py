"""`coreg-agent report`: what a site's runs found of whether joining pays, from its model files."""

from collections.abc import Sequence
from pathlib import Path

from coreg_core.errors import BadData, UsageError
from site_agent.models.file import load_model
from site_agent.models.findings import Found, table, together


def report(models: Sequence[Path]) -> Found:
    """What these runs of one site found, as one.

    Raises
    ------
    BadData
        no run of these kept what it found: without a path of λ and without a forecast.
    UsageError
        models of different sites.
    """
    loaded = [load_model(path) for path in models]
    if len({model.site for model in loaded}) > 1:
        raise UsageError(f"models of {', '.join(sorted({model.site for model in loaded}))}; a report is of one site.")
    found = [model.found for model in loaded if model.found]
    if not found:
        raise BadData(
            f"{', '.join(map(str, models))}: no run of these looked at own labels. Plan forecast = true (additive objective), "
            "or a path of couplings."
        )
    return together(found)


def picture(found: Found, path: Path, title: str) -> None:
    """The errors and what chance leaves of them, as SVG."""
    from site_agent.models.plot import draw_errors

    draw_errors([(name, error, error - se, error + se) for name, error, se, _ in table(found)], path, title)
