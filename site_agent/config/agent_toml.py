"""agent.toml of an agent that stays connected: the coordinator, this site's folders, its consent, and its data sets by
name.

Paths are relative to the file.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError, field_validator

from coreg_core.errors import UsageError
from coreg_wire.files.toml_file import read_toml
from coreg_wire.identity.names import check_study_name
from coreg_wire.transport.service import LEAST_BANDWIDTH
from site_agent.config.settings import Settings, a_source
from site_agent.data.prepare import Inputs
from site_agent.data.sources import Query, at

_CONFIG = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
Word = Annotated[str, Field(min_length=1)]
Words = Annotated[tuple[Word, ...], Field()]


class DataSet(BaseModel):
    """A table of this site, as studies name it; the keys mean what the options of `coreg-agent` mean."""

    model_config = _CONFIG

    table: Annotated[Path | Query, PlainValidator(a_source)]
    target: Word
    id: Word
    unlabelled: Annotated[Path | Query | None, PlainValidator(a_source)] = None
    categorical: Words = ()
    dates: Words = ()
    drop: Words = ()
    scale: bool = True
    labels: bool = True

    def inputs(self, base: Path) -> Inputs:
        """What of it says which rows and columns are used."""
        unlabelled = None if self.unlabelled is None else at(self.unlabelled, base)
        return Inputs(
            at(self.table, base),
            self.target,
            self.id,
            unlabelled,
            self.categorical,
            self.drop,
            self.scale,
            self.labels,
            self.dates,
        )


class ServiceSettings(BaseModel):
    """The whole file. ``approval``: "policy" takes part in whatever the policy allows; "ask" waits for `coreg-agent approve`."""

    model_config = _CONFIG

    coordinator: Word
    identity: Path = Path("identity")
    models: Path = Path("models")
    state: Path | None = None
    policy: Path | None = None
    ledger: Path | None = None
    ledger_max_bytes: Annotated[int, Field(ge=4096)] = 1 << 26  # of one file; the next one goes on
    approval: Literal["policy", "ask"] = "policy"
    patience: Annotated[Literal["unlimited"] | Annotated[float, Field(ge=1)], Field()] = "unlimited"
    least_bandwidth: Annotated[float, Field(ge=1000)] = LEAST_BANDWIDTH
    keep: Annotated[int, Field(ge=1)] | None = None
    data: dict[str, DataSet] = Field(min_length=1)

    @field_validator("data")
    @classmethod
    def _names(cls, data: dict[str, DataSet]) -> dict[str, DataSet]:
        for name in data:
            check_study_name(name, "data set")
        return data

    @property
    def seconds(self) -> float:
        return math.inf if isinstance(self.patience, str) else self.patience

    @property
    def ledger_path(self) -> Path:
        return self.ledger or self.identity / "ledger.jsonl"

    @property
    def state_path(self) -> Path:
        """Where the agent and its operator's commands leave each other word."""
        return self.state or self.identity / "service"


def read_service_settings(path: Path, **given: Any) -> ServiceSettings:
    """agent.toml, checked; ``given`` is what a command line says instead of the file, where it is not None.

    Raises
    ------
    UsageError
        missing, not TOML, an unknown key, a value that does not fit; every fault is named with its key.
    """
    plain = read_toml(path)
    if isinstance(plain.get("data"), str):
        raise UsageError(
            f"{path}: data = {plain['data']!r} is for `coreg-agent --config`, which takes part in one run. An agent that serves "
            "has a section for each data set: [data.NAME] with table, target and id."
        )
    try:
        settings = ServiceSettings.model_validate({**plain, **{k: v for k, v in given.items() if v is not None}})
    except ValidationError as error:
        told = "\n".join(f"  {'.'.join(map(str, e['loc'])) or 'the file'}: {e['msg']}" for e in error.errors())
        raise UsageError(f"{path}: {error.error_count()} fault(s):\n{told}") from None
    base = path.parent
    paths = {
        "identity": settings.identity,
        "models": settings.models,
        "policy": settings.policy,
        "ledger": settings.ledger,
    }
    paths["state"] = settings.state
    absolute = {name: base / found for name, found in paths.items() if found is not None and name not in given}
    return settings.model_copy(update=absolute)


def serves(path: Path) -> bool:
    """Whether the file is one of an agent that serves: its data are sections.

    Raises
    ------
    UsageError
        see `read_toml`.
    """
    return isinstance(read_toml(path).get("data"), dict)


def settings_that_serve(path: Path, given: dict[str, Any]) -> tuple[Settings, dict[str, Inputs]]:
    """What such a file says, for `check`: the settings that an agent of one run has too, and the data sets by name.

    Raises
    ------
    UsageError
        see `read_service_settings`; an option that belongs to a data set.
    """
    said = {key: value for key, value in given.items() if value not in (None, [], ())}
    own = {"coordinator", "identity", "policy", "insecure", "name"}
    if wrong := sorted(said.keys() - own):
        raise UsageError(f"--{', --'.join(wrong)}: {path} has sections [data.NAME], and what they are stands there.")
    read = read_service_settings(
        path, **{key: said[key] for key in said.keys() & {"coordinator", "identity", "policy"}}
    )
    plain = {
        "coordinator": read.coordinator,
        "identity": read.identity,
        "policy": read.policy,
        "ledger": read.ledger_path,
        "output": read.models / "STUDY",
        **{key: said[key] for key in said.keys() & {"insecure", "name"}},
    }
    settings = Settings.model_validate(plain)
    return settings, {name: data.inputs(path.parent) for name, data in read.data.items()}
