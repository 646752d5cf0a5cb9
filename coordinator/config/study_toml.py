"""study.toml: what is to be computed, on which data set, by whom.

A federation says who, where and in which time; a study says what.
"""

import uuid
from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from coordinator.config.federation_toml import Computed, Configuration, FederationSection, Section, faults_of
from coreg_core.errors import UsageError
from coreg_core.protocol.plan import Iteration, LostPolicy, Plan, Privacy
from coreg_wire.files.toml_file import read_toml
from coreg_wire.identity.names import check_study_name


class StudySection(Section):
    """Its name, its data set's name at every site, and who takes part; what is not said is the federation's."""

    name: str
    data: str = ""
    sites: tuple[str, ...] | None = Field(default=None, min_length=1, max_length=10_000)
    min_sites: int | None = Field(default=None, ge=1)
    on_lost: LostPolicy | None = None
    most_returns: int | None = Field(default=None, ge=0, le=1000)

    @field_validator("name")
    @classmethod
    def _name(cls, name: str) -> str:
        return check_study_name(name, "study")

    @field_validator("data")
    @classmethod
    def _data(cls, name: str) -> str:
        return check_study_name(name, "data set") if name else name


class Study(Computed):
    """The whole file."""

    study: StudySection

    def plan(self, federation: FederationSection) -> Plan:
        """The plan of a new run of it.

        Raises
        ------
        UsageError
            it wants a site that the federation does not list, or more sites than it has.
        """
        said = self.study
        sites = federation.sites if said.sites is None else tuple(sorted(said.sites))
        if strangers := sorted(set(sites) - set(federation.sites)):
            raise UsageError(
                f"study {said.name}: {', '.join(strangers)} not in the federation's list of sites "
                f"({', '.join(federation.sites)}). Add them to federation.toml, or leave them out."
            )
        least = said.min_sites or min(federation.min_sites or len(sites), len(sites))
        membership = FederationSection(
            name=federation.name,
            sites=sites,
            min_sites=least,
            on_lost=said.on_lost or federation.on_lost,
            most_returns=federation.most_returns if said.most_returns is None else said.most_returns,
        ).membership
        return Plan(
            run=uuid.uuid4().hex[:12],
            federation=federation.name,
            membership=membership,
            objective=self.objective,
            iteration=Iteration(**self.schedule.model_dump()),
            privacy=Privacy(**self.privacy.model_dump()),
            study=said.name,
            data=said.data,
        )


def read_study(path: Path) -> Study:
    """study.toml, checked.

    Raises
    ------
    UsageError
        missing, not TOML, an unknown key, a value out of range; every fault is named with its key.
    """
    try:
        return Study.model_validate(read_toml(path))
    except ValidationError as error:
        raise faults_of(path, error) from None


def study_plan(path: Path, configuration: Configuration) -> Plan:
    """The plan of a new run of the study in that file, under that federation.

    Raises
    ------
    UsageError
        see `read_study` and `Study.plan`.
    """
    try:
        return read_study(path).plan(configuration.federation)
    except ValidationError as error:  # of the membership, which only both files together make
        raise faults_of(path, error) from None
