"""study.toml: the computation, its data set and its sites. federation.toml has sites, addresses and
timeouts.
"""

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, model_validator

from coordinator.config.federation_toml import (
    ColumnName,
    Computed,
    Configuration,
    FederationSection,
    Section,
    faults_of,
)
from coreg_core.errors import UsageError
from coreg_core.names import check_name
from coreg_core.objectives.scoring import Scoring
from coreg_core.plan import Plan, plan_fault
from coreg_core.terms import DropoutPolicy
from coreg_wire.files.toml_file import read_toml


@dataclass(frozen=True)
class TrainedRun:
    """A run with models: its name, objective and participants."""

    run: str
    objective: Literal["agreement", "additive"]
    sites: tuple[str, ...]
    columns: int = 1  # of its predictions: one, or one for each class


class StudySection(Section):
    """The study's name, the name of its data set at every site, and its sites.

    Missing keys come from federation.toml.
    """

    name: Annotated[str, AfterValidator(lambda name: check_name(name, "study"))]
    data: Annotated[str, AfterValidator(lambda name: name and check_name(name, "data set"))] = ""
    target: ColumnName = ""
    id: ColumnName = ""
    sites: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=10_000)
    min_sites: int | None = Field(default=None, ge=1)
    on_dropout: DropoutPolicy | None = None


class Study(Computed):
    """The whole file."""

    study: StudySection

    @model_validator(mode="after")
    def _chosen(self) -> Self:
        self.check_model()
        return self

    def plan(
        self, federation: FederationSection, trained: "Callable[[str], TrainedRun] | None" = None
    ) -> Plan:
        """The plan of a new run of it.

        ``trained`` is the run whose models score, by its name or a prefix; "" is the latest.
        """
        study = self.study
        objective = self.objective
        sites = federation.sites if study.sites is None else tuple(sorted(study.sites))
        if strangers := sorted(set(sites) - set(federation.sites)):
            raise UsageError(
                f"study {study.name}: {', '.join(strangers)} not in the federation's list of sites "
                f"({', '.join(federation.sites)}). Add them to federation.toml, or leave them out."
            )
        least = study.min_sites or min(federation.min_sites or len(sites), len(sites))
        dropout = study.on_dropout or federation.on_dropout
        if isinstance(objective, Scoring):
            if trained is None:
                raise UsageError(
                    f"study {study.name}: scoring needs the run store, for the models of an earlier"
                    " run."
                )
            run = trained(objective.of_run)
            objective = replace(
                objective, of_run=run.run, trained=run.objective, columns=run.columns
            )
            sites = run.sites
            dropout = "wait"
            # With two, each could compute the other's part.
            least = study.min_sites or min(3, len(sites))
        membership = FederationSection(
            name=federation.name,
            sites=sites,
            min_sites=least,
            on_dropout=dropout,
        ).membership
        return Plan(
            run=uuid.uuid4().hex[:12],
            federation=federation.name,
            membership=membership,
            **self.terms() | {"objective": objective},
            study=study.name,
            data=study.data,
            target=study.target or federation.target,
            id=study.id or federation.id,
        )


def read_study(path: Path, above: Configuration | None = None) -> Study:
    """study.toml, checked.

    Without [model] it takes [model], and no other section, of federation.toml.
    """
    values = read_toml(path)
    if above is not None and "model" not in values:
        values = above.model_dump(include={"model"}, exclude_unset=True) | values
    try:
        return Study.model_validate(values)
    except ValidationError as error:
        raise faults_of(path, error, Study) from None


def study_plan(
    path: Path, configuration: Configuration, trained: "Callable[[str], TrainedRun] | None" = None
) -> Plan:
    """The plan of a new run of the study in that file, under that federation; ``trained`` as in
    `Study.plan`.
    """
    try:
        plan = read_study(path, configuration).plan(configuration.federation, trained)
    except ValidationError as error:  # both files together determine the membership
        raise faults_of(path, error) from None
    if (fault := plan_fault(plan)) is not None:
        raise UsageError(f"{path}: {fault}")
    return plan
