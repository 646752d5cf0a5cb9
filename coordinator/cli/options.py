"""Options that several commands have."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coreg_core.errors import UsageError

if TYPE_CHECKING:
    from coordinator.config.federation_toml import Configuration
    from coreg_core.plan import Plan

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line, for machines.")]


def federation_file(path: Path) -> Path:
    """federation.toml of a folder; a file as it is."""
    is_file = path.is_file() or (path.suffix == ".toml" and not path.is_dir())
    if is_file:
        return path
    return path / "federation.toml"


def run_store(path: Path) -> Path:
    """The run store of a federation, which is there; a store as it is.

    Other faults of federation.toml do not matter.
    """
    from coreg_wire.files.toml_file import read_toml

    store = path
    if not path.is_file() or path.suffix == ".toml":
        file = federation_file(path)
        if not file.exists():
            raise UsageError(
                f"{file}: no such file. Name the federation's folder, or a copy of its run store."
            )
        service = read_toml(file).get("service")
        store = file.parent / str(
            service.get("store", "runs.sqlite") if isinstance(service, dict) else "runs.sqlite"
        )
    if not store.exists():
        raise UsageError(f"{store}: no such run store. The first `serve` or `run` makes it.")
    return store


_OF: Any = {"envvar": "COREG_FEDERATION", "readable": False}
FederationArgument = Annotated[
    Path, typer.Argument(help="federation.toml, or its folder.", callback=federation_file, **_OF)
]
_STORE: Any = {"help": "federation.toml, its folder, or a copy of its run store.", **_OF}
StoreArgument = Annotated[Path, typer.Argument(**_STORE)]
StoreOption = Annotated[Path, typer.Option("--federation", **_STORE)]
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen",
        envvar="COREG_LISTEN",
        help="HOST:PORT instead of the file's; port 0: a free one.",
    ),
]
StudyOption = Annotated[
    Path | None,
    typer.Option("--study", help="study.toml; without it the plan is that of federation.toml."),
]
PortFileOption = Annotated[
    Path | None, typer.Option("--port-file", help="Write the port there once it listens.")
]


def waits_now(store: Path) -> dict[str, str]:
    """What each run waits for, by its name; empty if no coordinator serves the store."""
    from coordinator.store.status import Status
    from coreg_wire.files.disk import is_held

    if not is_held(store):
        return {}
    with closing(Status(store, read_only=True)) as status:
        waits: dict[str, str] = status.service().get("waiting", {})
    return waits


def planned(configuration: "Configuration", study: Path | None) -> "Plan":
    """The plan of federation.toml, or of a study in it."""
    from coordinator.config.study_toml import study_plan
    from coordinator.store.runs import trained_run

    store = configuration.service.store
    if study is not None:
        return study_plan(study, configuration, lambda run: trained_run(store, run))
    try:
        configuration.check_model()
    except ValueError as error:
        raise UsageError(f"federation.toml: {error}.") from None
    return configuration.plan()
