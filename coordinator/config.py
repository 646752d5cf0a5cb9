"""federation.toml: its shape, its checks, and the plan that comes of it.

Knows pydantic and messages; no socket, no run. Unknown keys are errors: a misspelt tolerance must not be a default.
"""

import uuid
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from coordinator.phases import Timeouts
from coreg_core.errors import UsageError
from coreg_core.messages import Form, LostPolicy, Plan, TargetScale
from coreg_core.rounds import ScheduleName
from coreg_core.views import BoundRule
from coreg_wire.console import read_toml
from coreg_wire.names import check_site_name

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _fits_the_wire(value: int) -> int:
    if value >= 2**31:
        raise ValueError("too large: 2147483647 at most")
    return value


def check_listen(listen: str) -> str:
    """HOST:PORT, with a port that there is: gRPC takes 99999 for 34463, and no port for 443.

    Raises:
        ValueError: not of that form.
    """
    host, colon, port = listen.rpartition(":")
    if not (host and colon and port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError(f"{listen!r} is not HOST:PORT with a port of 0 to 65535")
    return listen


class FederationSection(_Section):
    """Who."""

    name: str
    sites: tuple[str, ...] = Field(min_length=1, max_length=10_000)
    min_sites: int | None = Field(default=None, ge=1)
    on_lost: LostPolicy = "wait"

    @field_validator("name")
    @classmethod
    def _readable(cls, name: str) -> str:
        # The codec shows what cannot be printed as a space, so every site would digest another plan than was sent.
        if not (name.strip() and name.isprintable() and len(name) <= 200):
            raise ValueError("a name is 1 to 200 printable characters, without tabs, line breaks and the like")
        return name

    @field_validator("sites")
    @classmethod
    def _names(cls, sites: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(sites)) != len(sites):
            raise ValueError("a site is listed twice")
        return tuple(sorted(check_site_name(site) for site in sites))

    @model_validator(mode="after")
    def _enough(self) -> "FederationSection":
        if self.min_sites is not None and self.min_sites > len(self.sites):
            raise ValueError(f"min_sites={self.min_sites}, but {len(self.sites)} sites are listed")
        return self


class ModelSection(_Section):
    """What is minimised."""

    form: Form = "exact"
    kernel: Literal["gaussian", "laplacian", "polynomial", "linear"] = "gaussian"
    bandwidth: Literal["paper", "median"] | Positive = "paper"
    ridge: Literal["paper"] | Positive = "paper"
    degree: int = Field(default=3, ge=1)
    offset: NotNegative = 1.0
    landmarks: int = Field(default=100, ge=1)
    seed: int = Field(default=0, ge=0)
    coupling: NotNegative | tuple[NotNegative, ...] = 0.01
    target: TargetScale = "centred"

    @field_validator("degree", "landmarks", "seed")
    @classmethod
    def _fits(cls, value: int) -> int:
        return _fits_the_wire(value)

    @field_validator("coupling")
    @classmethod
    def _some(cls, value: float | tuple[float, ...]) -> float | tuple[float, ...]:
        if isinstance(value, tuple) and not 1 <= len(value) <= 64:
            raise ValueError("one coupling, or a list of 1 to 64")
        return value


class ScheduleSection(_Section):
    """How, and until when."""

    name: ScheduleName = "conjugate-gradients"
    tolerance: NotNegative = 1e-10
    prediction_tolerance: NotNegative = 1e-6
    max_rounds: int = Field(default=1000, ge=1)
    bound: BoundRule = "tight"
    threads: int = Field(default=1, ge=1, le=1024)

    @field_validator("max_rounds")
    @classmethod
    def _fits(cls, value: int) -> int:
        return _fits_the_wire(value)


class ServiceSection(_Section):
    """Where."""

    listen: str = "127.0.0.1:7600"
    identity: Path = Path()
    store: Path = Path("runs.sqlite")

    @field_validator("listen")
    @classmethod
    def _address(cls, value: str) -> str:
        return check_listen(value)


class TimeoutSection(_Section):
    """The five clocks, in seconds."""

    join: Positive = 600.0
    plan: Positive = 600.0
    round: Positive = 60.0
    stall: Positive = 600.0
    keepalive: float = Field(default=5.0, ge=1.0, le=3600.0)


class Configuration(_Section):
    """The whole file."""

    federation: FederationSection
    model: ModelSection = ModelSection()
    schedule: ScheduleSection = ScheduleSection()
    service: ServiceSection = ServiceSection()
    timeouts: TimeoutSection = TimeoutSection()

    def plan(self, run: str | None = None) -> Plan:
        """The plan; a new run's name unless one is given."""
        f, m, s = self.federation, self.model, self.schedule
        return Plan(
            run=run or uuid.uuid4().hex[:12],
            federation=f.name,
            sites=f.sites,
            min_sites=f.min_sites or len(f.sites),
            on_lost=f.on_lost,
            form=m.form,
            kernel=m.kernel,
            bandwidth=m.bandwidth,
            ridge=m.ridge,
            degree=m.degree,
            offset=m.offset,
            landmarks=m.landmarks,
            seed=m.seed,
            coupling=m.coupling if isinstance(m.coupling, tuple) else (m.coupling,),
            schedule=s.name,
            tolerance=s.tolerance,
            prediction_tolerance=s.prediction_tolerance,
            max_rounds=s.max_rounds,
            target=m.target,
            bound=s.bound,
            threads=s.threads,
        )

    def machine_timeouts(self) -> Timeouts:
        """The four clocks of the machine; the fifth, keepalive, is the transport's."""
        t = self.timeouts
        return Timeouts(join=t.join, plan=t.plan, round=t.round, stall=t.stall)


def read_configuration(path: Path) -> Configuration:
    """federation.toml, checked. Paths in it are relative to the file.

    Raises:
        UsageError: missing, not TOML, an unknown key, a value out of range; every fault is named with its key.
    """
    try:
        configuration = Configuration.model_validate(read_toml(path))
    except ValidationError as error:
        faults: dict[str, list[str]] = {}
        for e in error.errors():  # "paper" or a number: each that it is not is an error of its own to pydantic
            faults.setdefault(f"{_where(e['loc'])} = {e['input']!r}", []).append(e["msg"])
        told = "\n".join(f"  {where}: {'; or '.join(messages)}" for where, messages in faults.items())
        raise UsageError(f"{path}: {len(faults)} fault(s):\n{told}") from None
    base, service = path.parent, configuration.service
    absolute = service.model_copy(update={"identity": base / service.identity, "store": base / service.store})
    return configuration.model_copy(update={"service": absolute})


def _where(location: tuple[str | int, ...]) -> str:
    """Section and key, and the place in a list; not the names that pydantic has for the members of a union."""
    return ".".join(str(part) for i, part in enumerate(location) if i < 2 or isinstance(part, int))


SAMPLE = """\
# A federation. `coreg-coordinator run federation.toml` serves it; every key and its default is in docs/operators-guide.md.

[federation]
name = "my federation"
# The names in the sites' certificates. The run begins when all of them have joined.
sites = ["site-a", "site-b", "site-c"]
# Fewest sites to go on with (default: all), and what to do when one does not answer: "wait" or "continue".
# min_sites = 3
# on_lost = "wait"

[model]
# "exact" (m up to about 10 000), "semi-parametric" (m up to millions), "landmarks" or "linear".
form = "exact"
kernel = "gaussian"
# λ: choose it, never assume it. 0 trains every site alone; a list, as in [0.0, 0.001, 0.01], trains a path at once.
coupling = 0.01
# Each site centres its targets by its own mean. "standardised" divides by its own deviation too; "raw" does neither.
target = "centred"

[schedule]
name = "conjugate-gradients"
# Stop when the certified gap is below tolerance · Σ‖y‖², and every prediction certified to this (in targets' units).
tolerance = 1e-10
prediction_tolerance = 1e-6
max_rounds = 1000

[service]
listen = "127.0.0.1:7600"
# The directory with ca.pem, coordinator.key, coordinator.pem and authorised-sites.
identity = "."
store = "runs.sqlite"

[timeouts]
# seconds: for all to join, to accept the plan (they factor then), to answer a round, to come back when stalled
join = 600
plan = 600
round = 60
stall = 600
"""
