"""Save the result of an agent that takes part in one run: a model file, or the scores of one table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coreg_core.errors import Refused
from coreg_core.protocol.plan import Plan
from coreg_wire.files.files import write_whole
from site_agent.data.aligned import SharedIds
from site_agent.data.prepare import Prepared
from site_agent.machine.memory import SiteResult
from site_agent.models.batch import Scored
from site_agent.models.file import SiteModel
from site_agent.models.writer import Models

Note = Callable[[str], None]  # receives a finding about this site's data


class Results(Protocol):
    """A place for results: `ModelStore` of a serving agent, or one of the classes below. ``aligns``: also for shared ids."""

    @property
    def aligns(self) -> bool: ...

    def has(self, plan: Plan) -> bool: ...

    def model_of(self, run: str) -> SiteModel: ...

    def put_models(
        self, plan: Plan, result: SiteResult, prepared: Prepared, target: str, note: Note
    ) -> tuple[Path, ...]: ...

    def put_scores(self, plan: Plan, result: SiteResult, scored: Scored) -> tuple[Path, ...]: ...

    def put_aligned(self, plan: Plan, result: SiteResult) -> tuple[Path, ...]: ...


class _OneRun:
    """Of an agent of one run: there is no earlier result."""

    aligns = False

    def has(self, plan: Plan) -> bool:  # noqa: ARG002
        return False


@dataclass(frozen=True)
class OneModel(_OneRun):
    """Saves the models of one run."""

    site: str
    output: Path
    local_model: Path | None

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

    def put_aligned(self, *_result: object) -> tuple[Path, ...]:
        raise AssertionError("an agent for one run aligns no ids")


@dataclass(frozen=True)
class OneScoring(_OneRun):
    """Saves the scores of one run, made with one model."""

    model: SiteModel
    output: Path

    def model_of(self, run: str) -> SiteModel:
        if run != self.model.run:
            raise Refused(
                f"the plan scores with the models of run {run}, but this site's model is of run {self.model.run}."
            )
        return self.model

    def put_models(self, *_result: object) -> tuple[Path, ...]:
        raise AssertionError("an agent for scoring trains no model")

    def put_aligned(self, *_result: object) -> tuple[Path, ...]:
        raise AssertionError("an agent for one run aligns no ids")

    def put_scores(self, plan: Plan, result: SiteResult, scored: Scored) -> tuple[Path, ...]:  # noqa: ARG002
        if result.scores is None:
            return ()
        many = len(scored.ids) > 1
        beside = {name: self.output.with_name(f"{self.output.stem}-{name}{self.output.suffix}") for name in scored.ids}
        return scored.write(result.scores, beside if many else dict.fromkeys(scored.ids, self.output))


@dataclass(frozen=True)
class OneAlignment(_OneRun):
    """Saves the shared ids of one alignment."""

    output: Path
    aligns = True

    def model_of(self, run: str) -> SiteModel:
        raise Refused(f"this agent was started to align ids. `coreg-agent score` scores with the models of run {run}.")

    def put_models(self, *_result: object) -> tuple[Path, ...]:
        raise Refused("this agent was started to align ids. `coreg-agent --data …` trains.")

    def put_scores(self, *_result: object) -> tuple[Path, ...]:
        raise AssertionError("an agent for an alignment has no batch")

    def put_aligned(self, plan: Plan, result: SiteResult) -> tuple[Path, ...]:
        shared = SharedIds.of(plan, result)
        if shared is None:
            return ()
        write_whole(self.output, shared.text().encode(), mode=0o600)
        return (self.output,)
