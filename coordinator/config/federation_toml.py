"""federation.toml: its sections, its checks, and the plan that it describes.

Sections that are terms of the plan are made from the plan's classes, which have the defaults and
limits. Unknown keys are errors, so that a misspelt key never means a default.
"""

import math
import uuid
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    Tag,
    ValidationError,
    create_model,
    model_validator,
)

from coordinator.machine.records import Timeouts
from coreg_core.errors import UsageError
from coreg_core.names import check_site_name
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.alignment import Alignment
from coreg_core.plan import OBJECTIVES, Objective, Plan, plan_fault
from coreg_core.terms import DropoutPolicy, Iteration, Membership, Privacy
from coreg_wire.files.toml_file import file_faults, read_toml
from coreg_wire.transport.service import IDLE_SECONDS, host_port

_CONFIG = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
Seconds = Annotated[float, Field(gt=0)]
Patience = Annotated[Literal["unlimited"] | Seconds, Field()]


class Section(BaseModel):
    """A section of a file. Unknown keys and infinities are errors."""

    model_config = _CONFIG


# Terms that are no keys of a file: they follow from the run whose models score.
_DERIVED = ("columns",)


def _section(terms: type, before: Callable[[Any], Any] | None = None, **changed: Any) -> Any:
    """A section with the fields of a class of the plan: types, limits and defaults."""
    hints = get_type_hints(terms, include_extras=True)
    hints = {name: StrictBool if hint is bool else hint for name, hint in hints.items()}
    shape = {
        f.name: (hints[f.name], ... if f.default is MISSING else f.default)
        for f in fields(terms)
        if f.name not in _DERIVED
    }
    validators: dict[str, Any] = (
        {"_before": model_validator(mode="before")(before)} if before else {}
    )
    section: Any = create_model(
        f"{terms.__name__}Section",
        __config__=_CONFIG,
        __doc__=terms.__doc__,
        __validators__=validators,
        **shape | changed,
    )
    return section


def _with_zero(section: Any) -> Any:
    """Add 0 (each site alone) to every path of couplings."""
    path = section.get("coupling") if isinstance(section, dict) else None
    if isinstance(path, list | tuple) and len(path) > 1 and 0 not in path:
        return {**section, "coupling": [0.0, *path]}
    return section


def _objective_said(section: dict[str, Any]) -> str | None:
    """The section's objective.

    A section without one is of the agreement, unless it has keys of another objective.
    """
    every = {key for model in MODELS.values() for key in model.model_fields}
    strange = section.keys() & (every - MODELS["agreement"].model_fields.keys())
    return section.get("objective", None if strange else "agreement")


def _one_or_several(value: object) -> object:
    if isinstance(value, list | tuple):
        return value
    return (value,)


if TYPE_CHECKING:
    MODELS: dict[str, type[BaseModel]]
    ModelSection: TypeAlias = BaseModel
    AlignmentSection: TypeAlias = BaseModel
    SolverSection: TypeAlias = BaseModel
    PrivacySection: TypeAlias = BaseModel
else:
    _hints = get_type_hints(Agreement, include_extras=True)
    _couplings = (
        Annotated[_hints["coupling"], BeforeValidator(_one_or_several)],
        Agreement().coupling,
    )
    # Terms that a file states otherwise than a plan.
    _stated = {"agreement": {"coupling": _couplings}, "scoring": {"of_run": (str, "")}}
    # [model] of each objective. The alignment has a section of its own.
    MODELS = {
        name: _section(terms, _with_zero, objective=(Literal[name], name), **_stated.get(name, {}))
        for name, terms in OBJECTIVES.items()
        if terms is not Alignment
    }
    # `align`: false where the sites' ids are equal by agreement.
    AlignmentSection = _section(Alignment, align=(StrictBool, True))
    # The objective determines the keys of the section. Without one they are those of the agreement;
    # see `check_model`.
    ModelSection = Annotated[
        reduce(or_, [Annotated[section, Tag(name)] for name, section in MODELS.items()]),
        Discriminator(
            lambda said: _objective_said(said) if isinstance(said, dict) else said.objective,
            custom_error_type="objective",
            custom_error_message=(
                "its key objective is missing, misspelt or has another value. It should be"
                " 'additive' (recommended) or "
                + " or ".join(f"'{name}'" for name in MODELS if name != "additive")
            ),
        ),
    ]
    SolverSection = _section(Iteration)
    PrivacySection = _section(Privacy)


def _readable(text: str) -> str:
    # The codec replaces unprintable characters by spaces, so each site would compute another digest
    # of the plan.
    if not (text.strip() and text.isprintable() and len(text) <= 200):
        raise ValueError("1 to 200 printable characters, without tabs and line breaks")
    return text


ColumnName = Literal[""] | Annotated[str, AfterValidator(_readable)]
SiteName = Annotated[str, AfterValidator(check_site_name)]


class FederationSection(Section):
    """The sites by the names in their certificates; ``target`` and ``id`` hold where a site names
    no others.
    """

    name: Annotated[str, AfterValidator(_readable)]
    target: ColumnName = ""
    id: ColumnName = ""
    sites: Annotated[
        tuple[SiteName, ...],
        Field(min_length=1, max_length=10_000),
        AfterValidator(lambda sites: tuple(sorted(sites))),
    ]
    min_sites: int | None = Field(default=None, ge=1)
    on_dropout: DropoutPolicy = Membership.on_dropout

    @model_validator(mode="after")
    def _possible(self) -> "FederationSection":
        # `_together` checks the other terms.
        alone = Plan("", self.name, self.membership, privacy=Privacy(aggregation="plaintext"))
        if (fault := plan_fault(alone)) is not None:
            raise ValueError(fault)
        return self

    @property
    def membership(self) -> Membership:
        return Membership(self.sites, self.min_sites or len(self.sites), self.on_dropout)


class ServiceSection(Section):
    """The coordinator's address, identity folder and run store."""

    listen: Annotated[
        str, AfterValidator(lambda address: host_port(address, "listen") and address)
    ] = "127.0.0.1:7600"
    identity: Path = Path()
    store: Path = Path("runs.sqlite")
    max_concurrent_runs: int = Field(default=4, ge=1, le=1000)


class TimeoutSection(Section):
    """Timeouts in seconds."""

    join: Patience = Timeouts.join
    plan: Patience = Timeouts.plan
    approval: Patience = Timeouts.approval
    round: Seconds = Timeouts.round
    stall: Patience = Timeouts.stall
    idle: float = Field(default=IDLE_SECONDS, ge=3.0, le=3600.0)


class Computed(Section):
    """The sections that describe the computation, of federation.toml and of a study."""

    model: ModelSection = MODELS["agreement"]()
    solver: SolverSection = SolverSection()
    privacy: PrivacySection = PrivacySection()
    alignment: AlignmentSection = AlignmentSection()

    @model_validator(mode="after")
    def _one_objective(self) -> Self:
        """Keys without a meaning under the objective are errors, like unknown keys."""
        if not isinstance(self.objective, Agreement):
            unused = [
                f"[solver] {key}" for key in sorted(self.solver.model_fields_set - {"threads"})
            ]
            if unused:
                raise ValueError(
                    f"{', '.join(unused)}: no meaning under the objective of [model]. Remove the"
                    " keys"
                )
        stated = "label_epsilon" in self.model.model_fields_set
        if stated and not getattr(self.objective, "private_labels", False):
            raise ValueError(
                "[model] label_epsilon needs label_range = [LOWEST, HIGHEST] if the target is a"
                " number: labels beyond it are clipped. A yes/no target has task ="
                ' "classification"'
            )
        return self

    def check_model(self) -> None:
        """Check that a run's objective was chosen: one λ for all sites, the plan's default, can
        harm a strong site.
        """
        if isinstance(self.objective, Agreement) and "coupling" not in self.model.model_fields_set:
            raise ValueError(
                '[model] names no objective. Write objective = "additive" (recommended). Or, for'
                " the agreement, write coupling = [0.001, 0.01, 0.1]: each site keeps the λ that"
                " its own labels choose, or 0"
            )

    @property
    def objective(self) -> Objective:
        """The section [model] as a term of the plan."""
        terms = self.model.model_dump()
        objective: Callable[..., Objective] = OBJECTIVES[terms.pop("objective")]
        return objective(**terms)

    def terms(self) -> dict[str, Any]:
        """The terms of the plan that the computation determines."""
        iteration = Iteration(**self.solver.model_dump())
        privacy = Privacy(**self.privacy.model_dump())
        ids = self.alignment.model_dump()
        align = Alignment(**ids) if ids.pop("align") else None
        return {
            "objective": self.objective,
            "iteration": iteration,
            "privacy": privacy,
            "align": align,
        }


class Configuration(Computed):
    """The whole file."""

    federation: FederationSection
    service: ServiceSection = ServiceSection()
    timeouts: TimeoutSection = TimeoutSection()

    @model_validator(mode="after")
    def _together(self) -> Self:
        if (fault := plan_fault(self.plan(""))) is not None:
            raise ValueError(fault)
        return self

    def plan(self, run: str | None = None) -> Plan:
        """The plan of a run; without a name, of a new one."""
        return Plan(
            run=run or uuid.uuid4().hex[:12],
            federation=self.federation.name,
            membership=self.federation.membership,
            **self.terms(),
            target=self.federation.target,
            id=self.federation.id,
        )

    def run_timeouts(self) -> Timeouts:
        """The timeouts of the runs. `idle` belongs to the transport."""
        seconds = self.timeouts.model_dump(exclude={"idle"})
        return Timeouts(
            **{name: math.inf if value == "unlimited" else value for name, value in seconds.items()}
        )


def read_configuration(path: Path, listen: str | None = None) -> Configuration:
    """federation.toml, checked.

    Paths in it are relative to the file. ``listen`` replaces that of the file.
    """
    if not path.exists():
        raise UsageError(
            f"{path}: no such file. Name the federation's folder, or make it: `coreg-coordinator"
            f" init {path.parent}`."
        )
    try:
        configuration = Configuration.model_validate(read_toml(path))
    except ValidationError as error:
        raise faults_of(path, error) from None
    base = path.parent
    service = configuration.service
    changed: dict[str, Any] = {"identity": base / service.identity, "store": base / service.store}
    if listen is not None:
        host_port(listen, "--listen")
        changed["listen"] = listen
    return configuration.model_copy(update={"service": service.model_copy(update=changed)})


def faults_of(
    path: Path, error: ValidationError, file: type[BaseModel] = Configuration
) -> UsageError:
    """Every fault of a federation or study file with its key, as one error."""
    models = [("model", section) for section in MODELS.values()]
    sections = {name: field.annotation for name, field in file.model_fields.items()}
    sections |= {
        "solver": SolverSection,
        "privacy": PrivacySection,
        "alignment": AlignmentSection,
    }
    keys = [
        f"{name}.{key}"
        for name, section in (*models, *sections.items())
        for key in getattr(section, "model_fields", ())
    ]
    return file_faults(path, error, [*keys, *sections], skip=("model",))
