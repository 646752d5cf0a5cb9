"""policy.toml: what this site agrees to, whatever a plan asks. Checked before anything is computed.

Knows pydantic and the plan; no data. Every refusal names the policy's key, so that both operators can act on it.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from coreg_core.errors import UsageError
from coreg_core.plan import Plan
from coreg_core.rounds.questions import most_questions
from coreg_wire.toml_file import read_toml


class Policy(BaseModel):
    """The defaults allow what the defaults of federation.toml ask."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_rounds: int = Field(default=10_000, ge=1)
    min_sites: int = Field(default=2, ge=1)
    coupling_min: float = Field(default=0.0, ge=0)
    coupling_max: float = Field(default=100.0, ge=0)
    most_couplings: int = Field(default=64, ge=1)
    most_threads: int = Field(default=64, ge=1)
    # Answers to one plan on one set of instances, over all its runs; by default 2 (max_rounds + 1) of the plan.
    most_questions: int | None = Field(default=None, ge=1)
    # ‖y‖² of centred or raw targets is disclosed with the acceptance; of standardised ones it is n, the number of rows.
    disclose_target_norm: bool = True
    # b_v: "tight" is the site's own spectral norm, "a-priori" m·κ/ν, which tells ν alone.
    disclose_bound: Literal["tight", "a-priori"] = "tight"

    def objection(self, plan: Plan) -> str | None:
        """Why this site will not take part, or None."""
        couplings, iteration, objective = plan.couplings, plan.iteration, plan.objective
        coupled = [c for c in couplings if not self.coupling_min <= c <= self.coupling_max]
        checks = [
            (
                iteration.max_rounds > self.max_rounds,
                f"max_rounds={iteration.max_rounds} is above max_rounds={self.max_rounds}",
            ),
            (
                plan.membership.min_sites < self.min_sites,
                f"min_sites={plan.membership.min_sites} is below min_sites={self.min_sites}",
            ),
            (
                bool(coupled),
                f"coupling={coupled} is outside coupling_min={self.coupling_min} to coupling_max={self.coupling_max}",
            ),
            (
                len(couplings) > self.most_couplings,
                f"{len(couplings)} couplings are more than most_couplings={self.most_couplings}",
            ),
            (
                iteration.threads > self.most_threads,
                f"threads={iteration.threads} is above most_threads={self.most_threads}",
            ),
            (
                not self.disclose_target_norm and objective.label_units != "standardised",
                f"label_units={objective.label_units!r} would disclose the norm of the targets (disclose_target_norm=false); "
                "use 'standardised'",
            ),
            (
                self.disclose_bound == "a-priori" and plan.privacy.bound == "tight",
                "bound='tight' would disclose more than disclose_bound='a-priori'",
            ),
        ]
        broken = [text for is_broken, text in checks if is_broken]
        return f"against this site's policy: the plan's {'; '.join(broken)}." if broken else None

    def questions(self, plan: Plan) -> int:
        """How many answers this site gives to a plan on one set of instances, over all its runs."""
        return self.most_questions or most_questions(plan.iteration.max_rounds)


def read_policy(path: Path | None) -> Policy:
    """policy.toml, checked; the defaults without one.

    Raises
    ------
    UsageError
        missing, not TOML, an unknown key, a value out of range.
    """
    if path is None:
        return Policy()
    try:
        return Policy.model_validate(read_toml(path))
    except ValidationError as error:
        faults = "\n".join(
            f"  {'.'.join(map(str, e['loc']))}: {e['msg']} (it is {e['input']!r})" for e in error.errors()
        )
        raise UsageError(f"{path}: {error.error_count()} fault(s):\n{faults}") from None
