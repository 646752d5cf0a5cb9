"""Scoring together from the operator's settings to a table of scores: model, batch, policy, ledger, connection."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from coreg_core.errors import UsageError
from coreg_core.protocol.messages import ToSite
from coreg_wire.transport.release import release
from site_agent.config.settings import Settings
from site_agent.data.drift import look
from site_agent.data.prepare import site_salt
from site_agent.data.shared_set import ids_digest, keyed, load_batch, names_of
from site_agent.data.sources import Source
from site_agent.identity.peers import run_keys
from site_agent.ledger import Disclosed, HeadSigner, Ledger
from site_agent.machine.memory import SiteResult
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Site
from site_agent.models.file import SiteModel, check_predictions, load_model, write_predictions
from site_agent.policy.guards import terms_of
from site_agent.policy.policy import read_policy
from site_agent.service.join import end_of, host_and_port, who_am_i
from site_agent.session.dial import Watcher


@dataclass(frozen=True)
class Scored:
    """How it ended for this site; ``rows`` is 0 where the scores were for others."""

    site: str
    result: SiteResult
    rows: int
    output: Path | None
    sent: dict[str, Disclosed]
    ledger: Path


def batch_of(
    model: SiteModel, data: Source, id_column: str, salt: bytes
) -> tuple[Batch, tuple[str, ...], tuple[str, ...]]:
    """What this site's model says of each instance, the instances' ids, and what its operator should read.

    An instance is lacking where every feature's cell is empty: all sites list it, and this one has no record of it.

    Raises
    ------
    BadData
        the table cannot be used, or lacks a column of the model; the model keeps no part.
    """
    table, ids = load_batch(data, id_column)
    names = model.preprocessing.sources
    table.require(names, "a feature of this model")
    lacking = np.asarray(
        table.frame.select(pl.all_horizontal(pl.col(names).is_null()))[:, 0].to_numpy(), dtype=np.bool_
    )
    known = np.flatnonzero(~lacking)
    part = np.zeros(len(ids))
    notes = table.notes
    if len(known):
        part[known] = model.part(table.rows(known))
        own = table.rows(known)
        notes = (*notes, *model.preprocessing.notes_on(own), *look(model.preprocessing, own).beyond)
    if lacking.any():
        first = ", ".join(ids[i] for i in np.flatnonzero(lacking)[:5])
        notes = (
            *notes,
            f"{data}: every feature of {int(lacking.sum())} instances is empty ({first} first): no record of them",
        )
    batch = Batch(
        part=part,
        lacking=lacking,
        mean=model.mean_on_shared,
        intercept=model.intercept,
        of_run=model.run,
        trained=model.objective,
        sites=tuple(model.plan["membership"]["sites"]) if "membership" in model.plan else tuple(model.plan["sites"]),
        ids_digest=ids_digest(ids),
        salt=salt,
        instances=names_of(ids_digest(ids), salt),
    )
    return batch, ids, notes


def score(
    settings: Settings,
    model: Path,
    output: Path,
    note: Callable[[str], None],
    progress: Callable[[ToSite], None],
) -> Scored:
    """Take part in one scoring, and write the scores where this site may have them.

    Raises
    ------
    CoregError
        of every kind; see the operator's guide.
    """
    assert settings.coordinator is not None
    assert settings.data is not None
    assert settings.id is not None
    host_and_port(settings.coordinator)
    name, identity = who_am_i(settings)
    loaded = load_model(model)
    if loaded.site != name:
        raise UsageError(f"{model}: a model of {loaded.site!r}, and this is {name!r}. Give this site's own.")
    check_predictions(output, settings.id)
    policy = read_policy(settings.policy)
    batch, ids, notes = batch_of(loaded, settings.data, settings.id, site_salt(settings.identity / "salt"))
    if policy.ids_secret is not None:
        batch = replace(batch, ids_digest=keyed(batch.ids_digest, policy.ids_secret))
    for text in notes:
        note(text)
    note(f"{name}: {len(ids)} instances to be scored together with the models of run {loaded.run}")
    ledger = Ledger(settings.ledger_path, None if identity is None else HeadSigner(identity))
    terms = terms_of(policy, ledger, None if identity is None else run_keys(identity, policy.peers), batch)
    written: list[Path] = []

    def deliver(result: SiteResult) -> None:
        if result.scores is not None:
            write_scores(output, result, ids, settings.id or "id")
            written.append(output)
        for finding in result.findings:
            note(finding)

    try:
        result = end_of(
            settings, identity, Site(name, batch, terms, release()), ledger, Watcher(note, progress, deliver)
        )
    finally:
        ledger.close()
    rows = 0 if result.scores is None else len(result.scores)
    return Scored(name, result, rows, written[0] if written else None, ledger.sent, ledger.path)


def write_scores(path: Path, result: SiteResult, ids: Sequence[str], id_column: str) -> None:
    """The ids and their scores, as `predict` writes predictions."""
    assert result.scores is not None
    write_predictions(path, result.scores, ids=ids, id_column=id_column, column="score")
