"""Two policies to begin with. What they do not say is the default (docs/operators-guide.md)."""

from typing import Literal, TypeAlias

Preset: TypeAlias = Literal["strict", "partners"]

_TEXTS: dict[Preset, str] = {
    "strict": """\
# Members of a run read its sums. This policy lets them have one operator on a set of instances, so that no algebra takes the
# sums apart into single sites; it costs paths of couplings, tuning, forecasts and changes of membership.
members_may_learn = "sums"
aggregation = "secure"
objectives = ["agreement"]
""",
    "partners": """\
# Members of a run read its sums. This policy trusts them: one that wants to could compute this site's operator and
# predictions on the shared instances (never labels of rows that are not shared, and never the features themselves).
members_may_learn = "operators"
aggregation = "secure"
objectives = ["agreement", "additive"]
scoring = true
convergence_report = "exact"
""",
}


def text_of(preset: Preset) -> str:
    """policy.toml, but for the pinned peers."""
    return (
        _TEXTS[preset]
        + "\n# `coreg-agent peers --pin NAME.pem …` writes this section; compare the words by telephone.\n# [peers]\n"
    )
