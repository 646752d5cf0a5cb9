"""A site's part in an exchange of second moments: its stages (`coreg_core.additive.exchange`) as bytes and words, and the models.

Who reads what of a stage: docs/reference/protocol.md, A run.
"""

import hashlib
import os
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import numpy as np
from jaxtyping import Bool
from numpy.typing import ArrayLike

from coreg_core.additive.exchange import SiteExchange, SiteSummary, Terms, Words
from coreg_core.additive.features import MOST_OWN, SiteRows
from coreg_core.agreement.schedules import Progress
from coreg_core.arrays import Ints
from coreg_core.computation.question import Lengths, Question
from coreg_core.errors import BadData, CoregError, Refused
from coreg_core.evaluation import Probability, fit_probability
from coreg_core.objectives.additive import Additive
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.secure import cross_products as cross
from coreg_core.secure.sums import WORD, Layout
from site_agent.consent.memory import RowSet, row_set
from site_agent.consent.objections import Consent, Counts
from site_agent.machine.agreement import data_digest
from site_agent.machine.job import Delivery, Fold, Judged, Reply, Row, SiteResult
from site_agent.site_data import PrivateData, keyed, normals, secret_of

_NUMBERS = struct.Struct("<IIddd")  # width, private rows, norm, level, deviation
# After its message has left, a lattice can be reduced to choose what the site answers to (the bits are counted for an hour).
HOUR = 3600.0


class AdditiveJob:
    """`site_agent.machine.job.Job`. The coordinator receives its errors, so they name no datum."""

    def __init__(
        self,
        plan: Plan,
        terms: Additive,
        name: str,
        data: PrivateData,
        pin_threads: Callable[[int], int],
        consent: Consent,
        random_bytes: cross.RandomBytes = os.urandom,
    ):
        pin_threads(plan.iteration.threads)
        self.plan, self.terms, self.name, self.data, self._random = (
            plan,
            terms,
            name,
            data,
            random_bytes,
        )
        if (fault := task_fault(terms, data.positive, data.y)) is not None:
            raise BadData(fault)
        self.n_unlabelled, self.ids_digest = len(data.Z), data.ids_digest
        self.data_digest = data_digest(data, plan.run)
        self._rows, order = _site_rows(data)
        if not (np.isfinite(self._rows.X).all() and np.isfinite(self._rows.y).all()):
            raise BadData("features or label column are too large for float64. Scale them.")
        keys = data.row_keys or tuple(f"{i} {y!r}" for i, y in enumerate(data.y.tolist()))
        self._consent = consent
        names = [keys[i].encode() for i in order.tolist()]
        self._private_names = names[len(names) - (len(self._rows.X) - self.n_unlabelled) :]
        self._label_normals = normals(
            [secret_of(self.data.salt, b"label noise", name) for name in names]
        )
        self._exchange: SiteExchange | None = None
        self._judged: Judged | None = None
        self.progress: Progress | None = None
        self.rounds = 0

    def begin(self, sites: tuple[str, ...], key: bytes, share: Fold) -> Question:  # noqa: ARG002
        """The features, and fresh secrets, of a new attempt. The same rows have the same features."""
        seed = secret_of(
            self.data.salt,
            b"features",
            self._rows.X.tobytes(),
            self._rows.own.tobytes(),
            self._rows.y.tobytes(),
        )
        with _as_bad_data(self.n_unlabelled):
            self._exchange = SiteExchange(
                sites.index(self.name),
                len(sites),
                self.terms,
                self._rows,
                len(self.data.Z),
                seed=int.from_bytes(seed[:4], "little"),
                label_normals=self._label_normals,
                random_bytes=self._random,
            )
        self._judged, self.rounds, self._n_sites = None, 0, len(sites)
        length = Lengths(to_all=-(-self.n_unlabelled // 8) + _NUMBERS.size)
        return self._round("summary", 0, (length,) * len(sites))

    def _round(self, kind: str, added: int, lengths: tuple[Lengths, ...]) -> Question:
        every = tuple(range(self._n_sites))
        return Question(kind, Layout(added, min(added, 1), 0), (), every, lengths)

    def _row_set(self, flags: Bool[np.ndarray, "m s"]) -> RowSet:
        """Labelled common rows with each site's statement, and this site's private ones."""
        told = [row.tobytes() if row.any() else b"" for row in flags] + [b"private"] * len(
            self._private_names
        )
        names = [name.encode() for name in self.data.ids] or [
            b"%d" % i for i in range(self.n_unlabelled)
        ]
        labels = dict(zip(self._rows.own.tolist(), self._rows.y.tolist(), strict=True))
        return row_set(
            secret_of(self.data.salt, b"rows"), [*names, *self._private_names], labels, told
        )

    @property
    def exchange(self) -> SiteExchange:
        """This attempt's."""
        assert self._exchange is not None, "begun"
        return self._exchange

    # --- stages ---------------------------------------------------------------------------------------------------

    def reply(self, asked: Question, chain: bytes) -> Reply:
        made = self.exchange
        with _as_bad_data(self.n_unlabelled):
            match asked.kind:
                case "summary":
                    self._since = self._consent.clock()
                    return Reply(to_all=_packed(made.summary()))
                case "announce":
                    message = made.announce(
                        self._summaries, hashlib.sha256(b"coreg A" + chain).digest()
                    )
                    return Reply(
                        shown=np.concatenate([message.encrypted.ravel(), message.projected.ravel()])
                    )
                case "sums":
                    if self._consent.clock() - self._since > HOUR:
                        raise Refused(
                            "more than an hour since this site's summary. The next attempt has fresh secrets."
                        )
                    self._consent.open_moments(self.plan, self.ids_digest, self._counts)
                    words, shares = made.add(self._messages)
                    low = {
                        u: bytes(share.astype("<u4").tobytes()) for u, share in shares.items()
                    }  # 32 bits are used
                    return Reply(_flat(words), to_each=low)
                case "private":
                    assert self._private is not None
                    return Reply(_flat(self._private))
                case _:
                    self._note_scores(chain)
                    return Reply(
                        to_each={u: part.tobytes() for u, part in self._parts.items()}, blinded=True
                    )

    def _note_scores(self, chain: bytes) -> None:
        """A part of a verdict is a score of that individual: it counts with later ones (`models_per_individual`)."""
        others = np.flatnonzero(
            np.delete(self.exchange.terms.flags, self.exchange.site, axis=0).any(axis=0)
        )
        at = np.flatnonzero(self.exchange.terms.used)[others].tolist() if self._parts else []
        ids, secret = self.data.ids or [str(i) for i in range(self.n_unlabelled)], self.data.salt
        model = keyed(secret, b"model", chain)
        found = b"".join(keyed(secret, b"scored", ids[i].encode()) + model for i in at)
        self._consent.note_scores(self.plan, np.frombuffer(found, dtype=WORD).reshape(-1, 2))

    def receive(self, asked: Question, delivery: Delivery, chain: bytes) -> Question | None:
        self.rounds += 1
        with _as_bad_data(self.n_unlabelled):
            match asked.kind:
                case "summary":
                    return self._summed_up(delivery.to_all)
                case "announce":
                    return self._announced(delivery.shown)
                case "sums":
                    return self._opened(delivery, chain)
                case "private":
                    assert delivery.total is not None
                    shapes = _private_shapes(sum(self.exchange.terms.d), len(self._summaries))
                    return self._fitted(_named(delivery.total, shapes), chain)
                case _:
                    parts = [np.frombuffer(text, WORD) for text in delivery.to_me.values()]
                    total = np.asarray(np.sum(parts, axis=0, dtype=WORD)) if parts else None
                    self._judged = Judged(self.exchange.finish(total), self._rows.y)
                    return None

    def _summed_up(self, texts: Sequence[bytes]) -> Question:
        self._summaries = [_unpacked(text, self.n_unlabelled) for text in texts]
        T = Terms(self.terms, self._summaries)
        flags = np.zeros((self.n_unlabelled, len(texts)), dtype=bool)
        flags[T.used] = T.flags.T
        rows = replace(self._row_set(flags), features=max(T.d))
        self._counts = Counts(rows=rows, labelled=T.n_labelled or int(T.private.sum()))
        self._consent.require(self.plan, self.ids_digest, self._counts)
        shapes = [_message_shapes(T, self._summaries, v) for v in range(len(texts))]
        return self._round(
            "announce", 0, tuple(Lengths(a[0] * a[1] + b[0] * b[1]) for a, b in shapes)
        )

    def _announced(self, rows: Sequence[Row]) -> Question:
        T, self._messages = self.exchange.terms, []
        for v, row in enumerate(rows):
            encrypted, projected = _message_shapes(T, self._summaries, v)
            end = encrypted[0] * encrypted[1]
            self._messages.append(
                cross.Message(row[:end].reshape(encrypted), row[end:].reshape(projected))
            )
        D, M, widths = sum(T.d), len(rows), [each.width for each in self._summaries]
        shares = [
            {u: 4 * T.d[v] * (widths[u] - T.d[u]) for u in range(M) if u != v} for v in range(M)
        ]
        added = _size(_sum_shapes(D, M))
        return self._round("sums", added, tuple(Lengths(to_each=each) for each in shares))

    def _opened(self, delivery: Delivery, chain: bytes) -> Question:
        made, M = self.exchange, len(self._summaries)
        T, D = made.terms, sum(made.terms.d)
        further = self._summaries[made.site].width - T.d[made.site]
        shares = {
            u: np.frombuffer(text, "<u4").astype(WORD).reshape(T.d[u], further)
            for u, text in delivery.to_me.items()
        }
        assert delivery.total is not None
        self._private = made.add_private(_named(delivery.total, _sum_shapes(D, M)), shares)
        if self._private is None:
            return self._fitted(None, chain)
        return self._round("private", _size(_private_shapes(D, M)), (Lengths(),) * M)

    def _fitted(self, total: Words | None, chain: bytes) -> Question:
        """The models; ``chain`` is that of their sums: the same sums have the same noise on scores."""
        T, M = self.exchange.terms, len(self._summaries)
        secret = secret_of(self.data.salt, b"score noise", chain, self.ids_digest.encode())
        self._parts = self.exchange.parts(
            total, np.random.default_rng(list(secret)).normal(size=T.rows)
        )
        rows = [8 * int(flags.sum()) if M > 2 else 0 for flags in T.flags]
        lengths = [{u: rows[u] for u in range(M) if u != v and rows[u]} for v in range(M)]
        return self._round("parts", 0, tuple(Lengths(to_each=each) for each in lengths))

    # --- the end --------------------------------------------------------------------------------------------------

    @property
    def outcome(self) -> tuple[Outcome, str] | None:
        if self._judged is None:
            return None
        return (
            Outcome.CONVERGED,
            f"second moments of {self._n_sites} sites, in {self.rounds} exchanges",
        )

    def result(self) -> SiteResult:
        judged = self._judged
        assert self.outcome is not None
        assert judged is not None
        T = self.exchange.terms
        told = f"{T.n_labelled} labelled shared individuals, {int(T.private.sum())} private ones; features of a site: {max(T.d)}"
        return SiteResult(
            *self.outcome,
            self.plan,
            additive=self.exchange.model(judged.verdict),
            findings=(told,),
            judged=judged,
            probabilities=self._probabilities(judged),
        )

    def _probabilities(self, judged: Judged) -> tuple[Probability, ...]:
        """Of the joined model, of the score and of the local model, by own labels left out in turn; () for a regression."""
        if self.terms.task == "regression":
            return ()
        left = judged.verdict.left_out
        joined = left.get("joined", np.zeros(0))
        residuals = (joined, left.get("score", joined), left.get("local", np.zeros(0)))
        return tuple(
            fit_probability(judged.labels[: len(r)] - r, judged.labels[: len(r)]) for r in residuals
        )


@contextmanager
def _as_bad_data(n_unlabelled: int) -> Iterator[None]:
    """Faults of the mathematics in terms of the rows, without a datum."""
    try:
        yield
    except MemoryError:
        raise BadData(f"not enough memory for {n_unlabelled} shared instances.") from None
    except CoregError:
        raise
    except (np.linalg.LinAlgError, ValueError, OverflowError) as error:
        raise BadData(f"these rows cannot be computed with ({error}).") from None


def _site_rows(data: PrivateData) -> tuple[SiteRows, Ints]:
    """Common rows first, then private labelled ones; and the places of the labels in the data."""
    positions = np.full(len(data.y), -1) if data.positions is None else data.positions
    private, common = np.flatnonzero(positions < 0), np.flatnonzero(positions >= 0)
    common = common[np.argsort(positions[common])]
    at = positions[common]
    if len(np.unique(at)) < len(at):
        raise BadData(
            "an individual that the sites share has two labelled rows. An additive training needs one row of each."
        )
    own: Ints = np.concatenate([at, len(data.Z) + np.arange(len(private))]).astype(np.int64)
    order: Ints = np.concatenate([common, private]).astype(np.int64)
    return SiteRows(np.concatenate([data.Z, data.X[private]]), own, data.y[order]), order


def _packed(told: SiteSummary) -> bytes:
    numbers = _NUMBERS.pack(told.width, told.private, told.norm, told.level, told.deviation)
    return numbers + np.packbits(told.labelled).tobytes()


def _unpacked(text: bytes, n: int) -> SiteSummary:
    """A member's summary. It can be false, but not malformed."""
    width, private, norm, level, deviation = _NUMBERS.unpack_from(text)
    flags = np.unpackbits(np.frombuffer(text, np.uint8, offset=_NUMBERS.size), count=n).astype(bool)
    if not (
        1 <= width <= MOST_OWN
        and np.isfinite([norm, level, deviation]).all()
        and norm > 0
        and deviation >= 0
    ):
        raise BadData(
            "a site's summary of its rows has a number that no rows have. It is not used."
        )
    return SiteSummary(flags, width, norm, level, deviation, private)


def _message_shapes(
    T: Terms, summaries: Sequence[SiteSummary], v: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    return (T.rows + cross.RANDOM_ROWS, summaries[v].width), (2 * T.d[v] + 2, cross.SECRET_ROWS)


def _sum_shapes(D: int, M: int) -> dict[str, tuple[int, ...]]:
    """Of the words of a sum: triangles of P and C, b, sums by owner, two halves of scalars."""
    return {
        "P": (D * (D + 1) // 2,),
        "b": (D,),
        "o": (M, D),
        "scalars": (2, M + 1),
        "C": (D * (D + 1) // 2,),
    }


def _private_shapes(D: int, M: int) -> dict[str, tuple[int, ...]]:
    return {"P": (D * (D + 1) // 2,), "b": (D,), "o": (M, D), "scalars": (2, 2 * M + 1)}


def _size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(map(prod, shapes.values()))


def _flat(words: Words) -> Row:
    return np.concatenate([each.ravel() for each in words.values()])


def _named(row: Row, shapes: Mapping[str, tuple[int, ...]]) -> Words:
    ends = np.cumsum([prod(shape) for shape in shapes.values()])[:-1].tolist()
    return {
        name: part.reshape(shape)
        for (name, shape), part in zip(shapes.items(), np.split(row, ends), strict=True)
    }


def task_fault(terms: Additive, positive: str, y: ArrayLike = ()) -> str | None:
    """Why the labels, or already the settings, are not of the plan's task. The coordinator receives it: it names no datum."""
    if terms.task == "regression" and positive:
        return (
            "this site declares a yes/no target (positive), and the plan's task is regression. The study needs "
            'task = "classification" in [model], or this site no `positive`.'
        )
    if terms.task == "classification" and not np.isin(y, (0.0, 1.0)).all():
        return (
            "the plan's task is classification, and this site's target has other values than 0 and 1. Its operator can name the "
            "positive value (positive in agent.toml, or --positive)."
        )
    return None
