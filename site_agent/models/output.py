"""Save the result of an agent that takes part in one run: a model file, or the scores of one table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from coreg_core.errors import Refused
from coreg_core.protocol.plan import Plan
from site_agent.data.prepare import Prepared
from site_agent.machine.job import SiteResult
from site_agent.models.batch import Scored
from site_agent.models.file import ModelFile
from site_agent.models.writer import Models

Note = Callable[[str], None]  # receives a finding about this site's data


class Results(Protocol):
    """A place for results: `ModelStore` of a serving agent, or `OneRun`; ``trains``: whether it takes models."""

    @property
    def trains(self) -> bool: ...

    def model_of(self, run: str) -> ModelFile: ...

    def put_models(
        self, plan: Plan, result: SiteResult, prepared: Prepared, target: str, note: Note
    ) -> tuple[Path, ...]: ...

    def put_scores(self, plan: Plan, result: SiteResult, scored: Scored) -> tuple[Path, ...]: ...


@dataclass(frozen=True)
class OneRun:
    """Of an agent of one run: a training writes models, a scoring one table."""

    kind: Literal["training", "scoring"]
    output: Path
    site: str = ""
    local_model: Path | None = None
    model: ModelFile | None = None  # to score with

    @property
    def trains(self) -> bool:
        return self.kind == "training"

    def model_of(self, run: str) -> ModelFile:
        if self.model is None or self.model.run != run:
            given = f"this agent was started for {self.kind}"
            given += "" if self.model is None else f" with a model of run {self.model.run}"
            raise Refused(f"the plan scores with the models of run {run}, but {given}. Use `coreg-agent score`.")
        return self.model

    def put_models(
        self,
        plan: Plan,  # noqa: ARG002
        result: SiteResult,
        prepared: Prepared,
        target: str,
        note: Note,
    ) -> tuple[Path, ...]:
        if self.kind != "training":
            raise Refused(f"this agent was started for {self.kind}. `coreg-agent --data …` trains.")
        return Models(self.site, prepared, target, self.output, self.local_model).write(result, note)

    def put_scores(self, plan: Plan, result: SiteResult, scored: Scored) -> tuple[Path, ...]:  # noqa: ARG002
        if result.scores is None:
            return ()
        many = len(scored.ids) > 1
        beside = {name: self.output.with_name(f"{self.output.stem}-{name}{self.output.suffix}") for name in scored.ids}
        return scored.write(result, beside if many else dict.fromkeys(scored.ids, self.output))
