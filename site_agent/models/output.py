"""Save the result of an agent that takes part in one run: a model file, or the scores of one table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coreg_core.errors import Refused
from coreg_core.protocol.plan import Plan
from site_agent.data.prepare import Prepared
from site_agent.machine.memory import SiteResult
from site_agent.models.batch import Scored
from site_agent.models.file import SiteModel
from site_agent.models.writer import Models

Note = Callable[[str], None]


class Results(Protocol):
    """A place for results: `ModelStore` of a serving agent, or one of the classes below."""

    def has(self, plan: Plan) -> bool: ...

    def model_of(self, run: str) -> SiteModel: ...

    def put_models(
        self, plan: Plan, result: SiteResult, prepared: Prepared, target: str, note: Note
    ) -> tuple[Path, ...]: ...

    def put_scores(self, plan: Plan, result: SiteResult, scored: Scored) -> tuple[Path, ...]: ...


@dataclass(frozen=True)
class OneModel:
    """Saves the models of one run."""

    site: str
    output: Path
    local_model: Path | None

    def has(self, plan: Plan) -> bool:  # noqa: ARG002
        return False

    def model_of(self, run: str) -> SiteModel:
        raise Refused(f"this agent was started for training. `coreg-agent score` scores with the models of run {run}.")

    def put_models(
        self,
        plan: Plan,  # noqa: ARG002
        result: SiteResult,
        prepared: Prepared,
        target: str,
        note: Note,
    ) -> tuple[Path, ...]:
        return Models(self.site, prepared, target, self.output, self.local_model).write(result, note)

    def put_scores(self, *_result: object) -> tuple[Path, ...]:
        raise AssertionError("an agent for training has no batch")


@dataclass(frozen=True)
class OneScoring:
    """Saves the scores of one run, made with one model."""

    model: SiteModel
    output: Path

    def has(self, plan: Plan) -> bool:  # noqa: ARG002
        return False

    def model_of(self, run: str) -> SiteModel:
        if run != self.model.run:
            raise Refused(
                f"the plan scores with the models of run {run}, but this site's model is of run {self.model.run}."
            )
        return self.model

    def put_models(self, *_result: object) -> tuple[Path, ...]:
        raise AssertionError("an agent for scoring trains no model")

    def put_scores(self, plan: Plan, result: SiteResult, scored: Scored) -> tuple[Path, ...]:  # noqa: ARG002
        if result.scores is None:
            return ()
        many = len(scored.ids) > 1
        beside = {name: self.output.with_name(f"{self.output.stem}-{name}{self.output.suffix}") for name in scored.ids}
        return scored.write(result.scores, beside if many else dict.fromkeys(scored.ids, self.output))
