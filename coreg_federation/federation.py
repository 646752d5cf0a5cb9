"""The coordinator of a federation from Python: create it, run it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from coordinator.cli.options import planned
from coordinator.config.federation_toml import read_configuration
from coordinator.machine.events import Finish
from coordinator.service.create import PORT, Choices, create
from coordinator.service.daemon import ServiceOptions, run
from coreg_core.errors import UsageError
from coreg_core.outcomes import Notice
from coreg_federation.event_loop import outside

SCORING = '[study]\nname = "scoring"\n\n[model]\nobjective = "scoring"\n'


@dataclass(frozen=True)
class Federation:
    """A folder with federation.toml, authority and store of runs.

    `Federation(folder)` opens it. ``invitations``: one a site.
    """

    folder: Path
    invitations: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # it may be given as a text
        if not (self.folder / "federation.toml").is_file():
            raise UsageError(f"{self.folder}: no federation.toml. `Federation.create` makes one.")

    @classmethod
    def create(
        cls,
        folder: str | Path,
        *,
        sites: Sequence[str],
        host: str = "127.0.0.1",
        name: str = "",
        target: str = "",
        id: str = "",  # noqa: A002 - as `Site.train` has it
        task: Literal["", "regression", "classification"] = "",
        port: int = PORT,
    ) -> "Federation":
        """Create a federation, as `coreg-coordinator init` does.

        Parameters
        ----------
        folder
            created if it does not exist.
        sites
            names.
        target, id
            the column to predict and the column with the ids, for sites that name no others.
        task
            "classification": a yes/no target.
        host, port
            where sites connect; they enrol at the next port.

        Raises
        ------
        UsageError
            the folder has an authority already, or a name does not fit.
        """
        if isinstance(sites, str):
            raise UsageError(f"sites={sites!r}: needs a list of names.")
        hosts = [] if host in ("127.0.0.1", "localhost") else [host]
        choices = Choices(name=name, target=target, id=id, task=task)
        _, invitations = create(Path(folder), hosts, sites, choices, port=port)
        return cls(Path(folder), {invitation.site: str(invitation) for invitation in invitations})

    def run(
        self,
        study: str | Path | None = None,
        *,
        progress: Callable[[str], None] | None = None,
    ) -> Finish:
        """Carry out one run, and wait for its end: of federation.toml, or of a study.toml.

        Parameters
        ----------
        study
            a path; None: federation.toml.
        progress
            receives sentences; None: they are not shown.

        Raises
        ------
        CoregError
            any kind; see docs/reference/exit-codes.md.
        """
        file = self.folder / "federation.toml"
        configuration = read_configuration(file)
        plan = planned(configuration, None if study is None else Path(study))

        def observe(notice: Notice) -> None:
            if notice.text and progress is not None:
                progress(notice.text)

        return outside(run, file, configuration, plan, ServiceOptions(), observe, new=False)

    def score(self, *, progress: Callable[[str], None] | None = None) -> Finish:
        """Score with the models of the latest training: `run` of a study with objective =
        "scoring".
        """
        study = self.folder / "scoring.toml"
        study.write_text(SCORING, encoding="utf-8")
        return self.run(study, progress=progress)
