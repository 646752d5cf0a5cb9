"""A site of a federation from Python: join it, train with it, score with it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import polars as pl

from coreg_core.errors import BadData, CoregError, Refused, UsageError
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan
from coreg_federation.event_loop import outside
from coreg_federation.model import Model, load_model
from coreg_federation.report import TrainingReport, report_of
from coreg_wire.identity.invitation import parse_invitation
from coreg_wire.terminal.command_line import OperatorInterrupt
from site_agent.config.settings import AgentSettings, read_settings, start
from site_agent.data.cell_text import unguarded
from site_agent.identity.enrolment import check_authority
from site_agent.identity.enrolment import join as redeem
from site_agent.identity.identity import check_identity
from site_agent.identity.members import OTHERS
from site_agent.models.findings import Findings
from site_agent.models.report import load_reports, summary_of
from site_agent.service import app
from site_agent.service.console import (
    EIGHT_WORDS,
    NOT_AGREED,
    OTHER_WORDS,
    operator_name,
    words_told,
)
from site_agent.service.state_store import Decision

Progress = Callable[[str], None]
Approve = bool | Callable[[Mapping[str, str], str], bool]


def join(invitation: str, folder: str | Path = ".") -> "Site":
    """Join a federation by an invitation: a key, which never leaves, a certificate and agent.toml
    in the folder of the site.

    A folder with a valid identity of this site in this federation is opened without a connection,
    as `Site(folder)` does. To use a second invitation there, such as after a revocation, run
    `coreg-agent join`.

    Parameters
    ----------
    invitation
        the line from the coordinator's operator.
    folder
        of this site; it is created. With an expired identity of the same site the key stays.

    Raises
    ------
    UsageError, Refused, Unreachable
        the line is incomplete; the invitation is used, expired or for another federation; no
        coordinator answers.
    """
    given = parse_invitation(invitation)
    identity = Path(folder) / "identity"
    joined = False
    with suppress(CoregError):  # no identity, or another one, about which `redeem` has the message
        check_authority(identity, given.authority)
        joined = check_identity(identity).name == given.site
    if not joined:
        redeem(given, identity)
    start(Path(folder), given.address)
    return Site(Path(folder))


@dataclass(frozen=True)
class Site:
    """A site that has joined, by its folder with identity/, agent.toml and policy.toml.

    `Site(folder)` opens it again.
    """

    folder: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.folder))  # it may be given as a text
        if not (self.folder / "agent.toml").is_file():
            raise UsageError(
                f"{self.folder}: no agent.toml, so no site has joined here. Give the folder of"
                " `join`."
            )

    def train(
        self,
        data: Any,
        *,
        target: str | None = None,
        id: str | None = None,  # noqa: A002 - as the option of the command
        words: str | None = None,
        approve: Approve = False,
        accept_words: bool = False,
        progress: Progress | None = None,
        **options: Any,
    ) -> "TrainingResult":
        """Take part in the federation's next run, as `coreg-agent --data` does.

        Parameters
        ----------
        data
            a pandas or polars frame, a path, or the address of a database, with ``query``.
        target, id
            columns; else those of the study or the usual ones.
        words
            the eight words that all operators have compared; ``accept_words`` takes them unseen,
            for demonstrations.
        approve
            True to take part, or a function of the plan's description by heading and the eight
            words ("" if they are confirmed) that decides.
        progress
            receives sentences; None: they are not shown.
        **options
            other keys of agent.toml for the table, such as ``query``, ``drop`` or ``categorical``.

        Raises
        ------
        CoregError
            any kind; see docs/reference/exit-codes.md.
        KeyboardInterrupt
            SIGINT or SIGTERM.
        """
        again = {"id": id, "words": words, "accept_words": accept_words or None}
        given = {"data": data, "target": target, **again, **options, "yes": approve is True or None}
        joined = _taken_part(self._settings(given), progress, approve, "training")
        return TrainingResult(
            self,
            joined.outcome,
            joined.written,
            joined.run,
            {**again, "yes": True},
        )

    def _settings(self, given: dict[str, Any]) -> AgentSettings:
        if not isinstance(data := given["data"], str | Path | None) and not hasattr(
            data, "columns"
        ):
            raise UsageError(
                "data: a pandas or polars frame, or a path, is needed, not a"
                f" {type(data).__name__}."
            )
        return read_settings(self.folder / "agent.toml", given, ("data", "coordinator"))


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training at a site, also of a run that failed: ``outcome.good`` tells.

    ``files``: the joined model first, the local model last. ``run``: its name.
    """

    site: Site
    outcome: Outcome
    files: tuple[Path, ...]
    run: str
    _options: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def model(self) -> Model:
        """The joined model.

        Raises
        ------
        UsageError
            the run ended without a model.
        """
        return load_model(self._file(0))

    @property
    def local(self) -> Model:
        """The local model, which this site trained alone; errors as of `model`."""
        return load_model(self._file(-1))

    @property
    def scores(self) -> pl.DataFrame:
        """Joint scores of shared individuals without a label: the id (texts) and ``score``, and
        ``probability`` of a yes/no target; of several classes the most probable one and the
        probability of each. Empty if the training ended without scores.
        """
        tables = [path for path in self.files if path.suffix == ".csv"]
        if tables:
            return read_scores(tables[0])
        return pl.DataFrame()

    @property
    def report(self) -> TrainingReport:
        """Did joining help? The recommendation, and the errors on this site's own left-out labels,
        as numbers; `print(report)` prints the text. Errors as of `model`.
        """
        [(path, model)] = load_reports([self._file(0)]).items()
        findings = model.findings or Findings()
        return report_of(model.run, model.target, findings, summary_of(path, model))

    def _file(self, place: int) -> Path:
        models = [path for path in self.files if path.suffix == ".coreg"]
        if not models:
            raise UsageError(f"the run ended without a model ({self.outcome.name.lower()}).")
        return models[place]

    def score(
        self,
        data: Any,
        *,
        id: str | None = None,  # noqa: A002
        query: str | None = None,
        progress: Progress | None = None,
    ) -> Any:
        """Take part in a scoring, while the operator calls `Federation.score`.

        Parameters
        ----------
        data
            the individuals to score, as for `train`; all sites list the same, or the run aligns
            them.
        id
            the id column; else that of the training.

        Returns
        -------
        pandas.DataFrame or polars.DataFrame
            as ``data`` is (of a path: polars): the id (a frame's integers stay integers),
            ``score`` (of several classes as in `scores`), the ``sites`` that have a record,
            the deviation that missing ones leave, and parts where the plan has contributions; empty
            if this site receives no scores.

        Raises
        ------
        CoregError
            any kind, also where the run ended early.
        """
        settings = self.site._settings(
            {**self._options, "data": data, "query": query, "id": id or self._options.get("id")}
        )
        joined = _taken_part(settings, progress, True, "scoring")
        if not joined.outcome.good:
            raise Refused(f"nothing was scored: {joined.outcome.name.lower()}.")
        if not joined.written:
            return in_kind_of(data, pl.DataFrame())
        scored = read_scores(joined.written[0])
        column = scored.columns[0]
        if hasattr(data, "columns") and (kind := pl.Series(list(data[column])).dtype).is_integer():
            scored = scored.with_columns(pl.col(column).cast(kind))
        return in_kind_of(data, scored)


def read_scores(path: Path) -> pl.DataFrame:
    """A table of scores, with texts for ids and sites."""
    texts = pl.read_csv(path, infer_schema=False)
    column = texts.columns[0]
    ids = pl.Series(column, map(unguarded, texts[column]), dtype=pl.String)
    classes = any(name.startswith("probability_") for name in texts.columns)
    return texts.with_columns(
        pl.all().exclude(column, "sites", "score" if classes else "").cast(pl.Float64), ids
    )


def in_kind_of(data: Any, frame: pl.DataFrame) -> Any:
    """The frame in the caller's kind: a pandas frame if ``data`` is one."""
    if not hasattr(data, "iloc"):
        return frame
    # The caller's own pandas: it is no dependency.
    return type(data)({name: frame[name].to_numpy() for name in frame.columns})


def _taken_part(
    settings: AgentSettings,
    progress: Progress | None,
    approve: Approve,
    kind: Literal["training", "scoring"],
) -> app.Joined:
    """`app.join`; if this site's own table ends the run, the error has the fault, which only its
    operator receives.
    """
    if approve is False:
        raise UsageError(
            "not approved: pass approve=True to take part, or a function that sees the plan and the"
            " eight words and decides."
        )
    heard: list[Notice] = []

    def observe(notice: Notice) -> None:
        heard.append(notice)
        if notice.text and progress is not None:
            progress(notice.text)

    try:
        asked = _Asked(approve)
        joined = outside(app.join, settings, observe, asked, kind)
        if asked.other_words:  # the coordinator has the refusal; its operator gets the reason
            raise Refused(asked.other_words[0])
        return joined
    except (
        OperatorInterrupt
    ) as error:  # a signal ends the program, also through its `except Exception`
        raise KeyboardInterrupt(str(error)) from None
    except Refused as error:
        faults = [after.text for notice, after in pairwise(heard) if notice.name == "data_unusable"]
        raise (BadData(faults[-1]) if faults else error) from None


@dataclass(frozen=True)
class _Asked:
    approve: Approve
    other_words: list[str] = field(default_factory=list)  # what is wrong with those that were given

    async def decide(
        self,
        plan: Plan,  # noqa: ARG002
        about: Mapping[str, str],
        words: str,
        news: str,
    ) -> Decision | CoregError:
        if callable(self.approve):
            approved = bool(self.approve(about, words))
            shown = {**about, EIGHT_WORDS: words} if words else dict(about)
            reason = "" if approved else NOT_AGREED
            return Decision(approved, reason, words, about=shown, by=operator_name())
        if words:
            question = f"{words_told(words, news)}. If they are the same, pass words=…"
            if OTHERS not in news:
                return Refused(question)
            self.other_words.append(question)
            return Decision(False, OTHER_WORDS)
        return Decision(True, "", words)
