"""The additive training at a site: its exchange (`coreg_core.additive.exchange`) as bytes and
words.

    summary → announce → sums → private, if a site has private rows → parts → gain

| question | the site answers | who reads it |
|---|---|---|
| summary | sizes, flags of labelled individuals, level and deviation of labels | all members |
| announce | its message of cross products | all members; alone it discloses nothing |
| sums | words of the second moments; a share for each other site | members, as a sum; that site |
| private | words of the same sums over private rows | members, as a sum |
| parts | parts of the score of each other site's individuals | that site, as a sum |
| gain | one byte | all members |

All sites derive the same `Terms` from the summaries, and from them the size of every later answer.
So an answer of another size is refused before it is read. This class turns numbers into bytes and
back, and says of each answer what it discloses. The method is in `coreg_core`.

Two things cannot happen. The noise on a label is not drawn twice: it follows from the site's
secret and the label, so a second training does not average it away. Sums are not answered more than
an hour after the summary, because an attack on the cross products may take that long at most.

What is not beautiful: an attempt that begins again opens other sums over the same rows. The policy
counts these openings, and the plan allows three attempts.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import prod

import numpy as np
from jaxtyping import Bool

from coreg_core.additive.channel import SealedSums, SiteNumbers
from coreg_core.additive.exchange import SiteExchange
from coreg_core.additive.features import FeatureSettings, SiteRows
from coreg_core.additive.label_privacy import columns_of, randomised
from coreg_core.additive.site_model import ClassModel, SiteModel, model_of
from coreg_core.additive.site_start import started
from coreg_core.additive.terms import SiteSummary, Terms, own_features, terms_of
from coreg_core.agreement.solver import Progress
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, CoregError, Refused
from coreg_core.evaluation import AnyProbability, fit_class_probabilities, fit_probability
from coreg_core.objectives.additive import MOST_OWN, OF_TARGET, SUMMARY, Additive
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan
from coreg_core.secure import cross_products as cross
from coreg_core.secure.sums import WORD
from coreg_core.shapes import Shape
from site_agent.disclosure import Pairs, RowSet, row_set
from site_agent.machine.objective import Answers, Fold, Question, Reply, Row
from site_agent.machine.results import LABELS_TO_JUDGE, AdditiveResult, JointScores, JudgedModels
from site_agent.site_data import PrivateData, keyed, normals, secret_of, uniforms

_NUMBERS = struct.Struct("<IId?")  # width, private rows, norm, scores
# After its message has left, a lattice can be reduced to choose what the site answers to. The bits
# are counted for an hour.
HOUR = 3600.0
# The coordinator receives it, so it names no datum.
NO_CLASSES = (
    "the plan's task is classification, and this site's target has other values than 0 and 1. Its "
    "operator can name the positive value (positive in agent.toml, or --positive)."
)
OTHER_CLASSES = "this site's target was not read with the plan's classes."
LARGEST = 1e100  # of a number in a summary: its square is a float64
MOST_PRIVATE = 10_000_000  # rows of a site: more would take the digits of the sums over them


class AdditiveComputation:
    """`site_agent.machine.objective.Computation`."""

    within = HOUR
    progress: Progress | None = None

    def __init__(
        self,
        plan: Plan,
        terms: Additive,
        name: str,
        data: object,
        pin_threads: Callable[[int], int],
        random_bytes: cross.RandomBytes,
    ):
        if not isinstance(data, PrivateData):
            raise Refused("this site was started with a model for scoring, so it cannot train.")
        pin_threads(plan.iteration.threads)
        _require_target(terms, data)
        self.terms = terms
        self.name = name
        self.data = data
        self.n_unlabelled = len(data.Z)
        self.ids_digest = data.ids_digest
        self.data_digest = data.digest(plan.run)
        self.rounds = 0
        self._question: Question | None = None  # none before the first attempt
        self._random = random_bytes
        self._rows, order = site_rows(data)
        if not (np.isfinite(self._rows.X).all() and np.isfinite(self._rows.y).all()):
            raise BadData("features or label column are too large for float64. Scale them.")
        keys = data.row_keys or tuple(f"{i} {y!r}" for i, y in enumerate(data.y.tolist()))
        names = [keys[i].encode() for i in order.tolist()]
        self._label_names = names
        n_private = len(self._rows.X) - self.n_unlabelled
        self._private_names = names[len(names) - n_private :]
        # With label_epsilon whatever leaves, and whatever a refusal tells, is made from these.
        self._randomised = _randomised_labels(terms, data, self._rows.y, names)
        self._ids = data.ids or tuple(str(i) for i in range(self.n_unlabelled))

    def begin(self, sites: tuple[str, ...], key: bytes, chain: bytes, fold: Fold) -> None:  # noqa: ARG002
        """The features, and fresh secrets, of a new attempt. The same rows have the same
        features.
        """
        rows = self._rows
        arrays = (rows.X, rows.own, self._labels)
        seed = secret_of(self.data.salt, b"features", *(array.tobytes() for array in arrays))
        self._sites = sites
        self._me = sites.index(self.name)
        self.rounds = 0
        self._judged: JudgedModels | None = None
        self._gains = dict[str, float]()
        with _as_bad_data(self.n_unlabelled):
            settings = FeatureSettings(
                self.n_unlabelled,
                own_features(self.terms, self.n_unlabelled, len(sites)),
                int.from_bytes(seed[:4], "little"),
                self.terms.kernel,
            )
            start = started(
                rows,
                settings,
                self.terms,
                label_normals=self._label_normals,
                randomised=self._randomised,
            )
            self.exchange = SiteExchange(
                self._me,
                start,
                self.terms,
                SealedSums(self._random),
                seed=settings.seed,
                random_bytes=self._random,
            )
        shape = self.terms.shape("summary", self.n_unlabelled, sites)
        self._question = Question("summary", dict.fromkeys(sites, shape))

    def _label_normals(self, size: float) -> Arr:
        """Of each label, for noise of this size."""
        about = f"{self.data.target} {size!r}".encode()
        salt = self.data.salt
        return normals([secret_of(salt, b"label noise", about, name) for name in self._label_names])

    def ask(self) -> Question | None:
        return self._question

    # --- answers --------------------------------------------------------------------------------

    def answer(self, question: Question, chain: bytes) -> Reply:
        with _as_bad_data(self.n_unlabelled):
            match question.kind:
                case "summary":
                    least = self.data.score_sites
                    scores = least is not None and least <= len(self._sites)
                    summary = self.exchange.start.summary(scores=scores)
                    return Reply(to_all=_packed(summary.rounded()))
                case "announce":
                    seed = hashlib.sha256(b"coreg A" + chain).digest()
                    message = self.exchange.announce(self._agreed, seed)
                    text = message.encrypted.tobytes() + message.projected.tobytes()
                    return Reply(to_all=text, rows=self._opening, labelled=self._labelled)
                case "sums":
                    return self._sums()
                case "private":
                    assert self._private is not None
                    return Reply(summed=_flat(self._private))
                case "gain":
                    assert self._judged is not None
                    return Reply(to_all=gain_byte(self._change(), len(self._rows.y)))
                case _:
                    parts = {self._sites[u]: part.tobytes() for u, part in self._parts.items()}
                    return Reply(to_each=parts, blinded=True, scores=self._scored(chain))

    @property
    def _labels(self) -> Arr:
        """The labels that may be told, or named."""
        if self._randomised is None:
            return self._rows.y
        return self._randomised

    def _change(self) -> float | None:
        """The change of the score's error that the members learn."""
        if self._randomised is not None:
            return self.exchange.told_gain()
        assert self._judged is not None
        gain = self._judged.verdict.gains.get("score")
        if gain is None:
            return None
        return gain.change

    def _sums(self) -> Reply:
        words, shares = self.exchange.add(self._messages)
        # Of a word of a share its 32 low bits are used.
        low = {self._sites[u]: share.astype("<u4").tobytes() for u, share in shares.items()}
        return Reply(
            summed=_flat(words),
            to_each=low,
            rows=self._opening,
            labelled=self._labelled,
            opens=True,
        )

    def _scored(self, chain: bytes) -> Pairs | None:
        """A part of a verdict is a score of that individual for a member."""
        if not self._parts:
            return None
        T = self.exchange.terms
        others = [T.rows_scored_for(u) for u in range(T.n_sites) if u != self._me]
        model = keyed(self.data.salt, b"model", chain)
        pairs = b"".join(
            keyed(self.data.salt, b"scored", self._ids[i].encode()) + model
            for i in np.unique(np.concatenate(others)).tolist()
        )
        return np.frombuffer(pairs, dtype=WORD).reshape(-1, 2)

    # --- what all sites said --------------------------------------------------------------------

    def take(self, question: Question, answers: Answers, chain: bytes) -> None:
        self.rounds += 1
        with _as_bad_data(self.n_unlabelled):
            match question.kind:
                case "summary":
                    texts = [answers.to_all[site] for site in self._sites]
                    self._take_summaries(
                        [_unpacked(text, self.n_unlabelled, self.terms.targets) for text in texts]
                    )
                case "announce":
                    self._take_messages([answers.to_all[site] for site in self._sites])
                case "sums":
                    self._take_sums(answers, chain)
                case "private":
                    assert answers.total is not None
                    shapes = _private_shapes(self.exchange.terms)
                    self._fit(_named(answers.total, shapes), chain)
                case "gain":
                    self._take_gains(answers.to_all)
                case _:
                    self._take_parts([*answers.to_me.values()])

    def _take_parts(self, texts: Sequence[bytes]) -> None:
        """The verdict, by the others' parts at this site's labels."""
        self._concluded = self.exchange.finish([np.frombuffer(text, WORD) for text in texts])
        verdicts = tuple(conclusion.verdict for conclusion in self._concluded)
        self._judged = JudgedModels(verdicts, self.exchange.judged_labels)
        self._question = None
        if self.terms.share_gain:
            shape = self.terms.shape("gain", self.n_unlabelled, self._sites)
            self._question = Question("gain", dict.fromkeys(self._sites, shape))

    def _take_gains(self, bytes_of: Mapping[str, bytes]) -> None:
        """What the score is worth at the other sites that can judge it."""
        for site, text in bytes_of.items():
            change = gain_of(text)
            if change is not None and site != self.name:
                self._gains[site] = change
        self._question = None

    def _take_summaries(self, summaries: Sequence[SiteSummary]) -> None:
        """The sizes of all that follows, and the labelled rows that the sums will open."""
        self._summaries = summaries
        self._agreed = T = terms_of(self.terms, summaries)
        flags = np.zeros((self.n_unlabelled, len(summaries)), dtype=bool)
        flags[T.used] = T.flags.T
        self._opening = replace(self.rows_to_open(flags), features=max(T.d))
        self._labelled = T.n_labelled or int(T.private.sum())
        shapes = {}
        for v, site in enumerate(self._sites):
            words = sum(prod(shape) for shape in _message_shapes(T, summaries, v))
            shapes[site] = Shape(to_all=8 * words)
        self._question = Question("announce", shapes)

    def rows_to_open(self, flags: Bool[np.ndarray, "m s"]) -> RowSet:
        """Labelled common rows with each site's statement, and this site's private ones."""
        statements = [row.tobytes() if row.any() else b"" for row in flags]
        statements += [b"private"] * len(self._private_names)
        names = [name.encode() for name in self._ids]
        labels = dict(zip(self._rows.own.tolist(), self._labels.tolist(), strict=True))
        secret = secret_of(self.data.salt, b"rows")
        return row_set(secret, [*names, *self._private_names], labels, statements)

    def _take_messages(self, texts: Sequence[bytes]) -> None:
        T = self.exchange.terms
        M = len(texts)
        self._messages = list[cross.Message]()
        for v, text in enumerate(texts):
            encrypted, projected = _message_shapes(T, self._summaries, v)
            row = np.frombuffer(text, WORD)
            end = prod(encrypted)
            message = cross.Message(row[:end].reshape(encrypted), row[end:].reshape(projected))
            self._messages.append(message)
        summed = _size(_sum_shapes(T))
        further = [summary.width - d for summary, d in zip(self._summaries, T.d, strict=True)]
        shapes = {}
        for v, site in enumerate(self._sites):
            others = (u for u in range(M) if u != v)
            to_each = {self._sites[u]: 4 * T.d[v] * further[u] for u in others}
            shapes[site] = Shape(summed, to_each=to_each)
        self._question = Question("sums", shapes, summed)

    def _take_sums(self, answers: Answers, chain: bytes) -> None:
        T = self.exchange.terms
        further = self._summaries[self._me].width - T.d[self._me]
        shares = {}
        for site, text in answers.to_me.items():
            u = self._sites.index(site)
            shares[u] = np.frombuffer(text, "<u4").astype(WORD).reshape(T.d[u], further)
        assert answers.total is not None
        total = _named(answers.total, _sum_shapes(T))
        self._private = self.exchange.add_private(total, shares)
        if self._private is None:
            self._fit(None, chain)
            return
        shape = Shape(_size(_private_shapes(T)))
        shapes_of = dict.fromkeys(self._sites, shape)
        self._question = Question("private", shapes_of, shape.summed, has_parts=False)

    def _fit(self, total: SiteNumbers | None, chain: bytes) -> None:
        """The models; ``chain`` is that of their sums: the same sums have the same noise."""
        T = self.exchange.terms
        secret = secret_of(self.data.salt, b"score noise", chain, self.ids_digest.encode())
        noise = np.random.default_rng(list(secret)).normal(
            size=(self.terms.targets, self.n_unlabelled)
        )
        self._parts = self.exchange.parts(total, noise)
        K = self.terms.targets
        sizes = [8 * K * len(T.rows_scored_for(v)) for v in range(len(self._sites))]
        sizes_of = dict(zip(self._sites, sizes, strict=True))
        shapes = {}
        for site in self._sites:
            to_each = {u: size for u, size in sizes_of.items() if u != site}
            shapes[site] = Shape(to_each=to_each)
        self._question = Question("parts", shapes)

    def news(self, run: str) -> Notice | None:
        """The exchange that goes on now: with many sites it takes minutes."""
        if self._question is None:
            return None
        phase = self.terms.questions[self._question.kind].phase
        work = (
            f"exchange {self.rounds + 1}, {phase}: answered; for the other sites, then the next one"
        )
        return Notice("progress", run=run, private=True, work=work, fields={"exchange": phase})

    # --- the end --------------------------------------------------------------------------------

    @property
    def outcome(self) -> tuple[Outcome, str]:
        what = f"second moments of {len(self._sites)} sites, in {self.rounds} exchanges"
        return Outcome.CONVERGED, what

    def result(self) -> AdditiveResult:
        assert self._judged is not None, "the last question is answered"
        T = self.exchange.terms
        outcome, reason = self.outcome
        model = model_of(self.exchange.models(self._concluded))
        sizes = (
            f"{T.n_labelled} labelled shared individuals, {int(T.private.sum())} private ones;"
            f" features of a site: {max(T.d)}"
        )
        return AdditiveResult(
            outcome=outcome,
            reason=reason,
            findings=(sizes, *self._without_scores(), *self._unlike_scores(self._judged)),
            model=model,
            classes=self.terms.classes,
            scores=self._scores(model),
            judged=self._judged,
            gains=self._gains,
            partners={self._sites[u]: worth for u, worth in self.exchange.partners().items()},
            probabilities=self._probabilities(self._judged),
        )

    def _scores(self, model: SiteModel | ClassModel) -> JointScores | None:
        """Those of individuals without a label, corrected by this site's own labels."""
        scores = self.exchange.scores
        if not len(scores):
            return None
        at = self.exchange.terms.scored
        columns = scores if self.terms.classes else scores[:, 0]
        X = self.data.Z[at]
        return JointScores(at, model.correct_score(columns, model.alone(X), X))

    def _unlike_scores(self, judged: JudgedModels) -> tuple[str, ...]:
        """Whether scores without a label are unlike those that this site's labels judged."""
        uncorrected = judged.verdicts[0].uncorrected
        scores = self.exchange.scores
        if uncorrected is None or len(uncorrected) < LABELS_TO_JUDGE or not len(scores):
            return ()
        labels = columns_of(judged.labels[: len(uncorrected)], self.terms.classes)[:, 0]
        own = labels - uncorrected  # scores of labelled individuals, left out
        deviation = scores[:, 0].std()
        apart = abs(scores[:, 0].mean() - own.mean())
        if max(deviation, apart) <= UNLIKE * own.std():
            return ()
        return (
            f"WARNING: the scores of individuals without a label (deviation {deviation:.3g}, mean"
            f" {apart:.3g} apart) are unlike those of this site's labelled ones (deviation"
            f" {own.std():.3g}). A member can send other numbers where no label judges them",
        )

    def _without_scores(self) -> tuple[str, ...]:
        """Why the training ends without joint scores, if it does."""
        absent = [
            site
            for site, summary in zip(self._sites, self._summaries, strict=True)
            if not summary.scores
        ]
        if not absent:
            return ()
        reason = "its policy has scoring = false, or models_per_individual is reached"
        if len(self._sites) == 2:
            reason = "two sites need scores_of_two = true in both policies"
        return (f"no joint scores: {', '.join(absent)} takes no part in them ({reason})",)

    def _probabilities(self, judged: JudgedModels) -> tuple[AnyProbability, ...]:
        """Of the joined model, the score and the local model, by own labels left out in turn.

        None for a regression.
        """
        if self.terms.task == "regression":
            return ()
        left = judged.left_out_scores(self.terms.classes)
        none = np.zeros((0, self.terms.targets))
        joined = left.get("joined", none)
        out = list[AnyProbability]()
        for scores in (joined, left.get("score", joined), left.get("local", none)):
            y = judged.labels[: len(scores)]
            if self.terms.classes:
                out.append(fit_class_probabilities(scores, y))
            else:
                out.append(fit_probability(scores[:, 0], y))
        return tuple(out)


UNLIKE = 2.0  # times the deviation of scores of own labelled individuals
# A gain as one byte: 0 for a site that cannot judge, else 128 and the change in steps of 5 %.
GAIN_STEPS = 20
_NO_CHANGE = 128


def gain_byte(change: float | None, labels: int) -> bytes:
    """The relative change of the score's error against the local model's, rounded to 5 %."""
    if change is None or labels < LABELS_TO_JUDGE or not np.isfinite(change):
        return bytes([0])
    steps = round(GAIN_STEPS * min(max(change, -1.0), 5.0))
    return bytes([_NO_CHANGE + steps])


def gain_of(text: bytes) -> float | None:
    """The change that a byte means; None: the site cannot judge."""
    if text[0] == 0:
        return None
    return (text[0] - _NO_CHANGE) / GAIN_STEPS


def _randomised_labels(
    terms: Additive, data: PrivateData, y: Arr, names: Sequence[bytes]
) -> Arr | None:
    """The labels as `label_epsilon` lets them leave; ``names``: of ids with values.

    The same label has the same noise under the same terms. For a corrected label, another target or
    other terms the random numbers are independent: shared ones would tell the label.
    """
    if not terms.private_labels:
        return None
    about = repr((data.target, terms.label_epsilon, terms.label_range, terms.classes)).encode()
    secrets = [secret_of(data.salt, b"label privacy", about, label) for label in names]
    return randomised(y, terms, uniforms(secrets))


def _require_target(terms: Additive, data: PrivateData) -> None:
    """Check that the site's target fits the plan's task."""
    fault = terms.target_fault(data.positive)
    if fault is not None:
        raise BadData(fault)
    if terms.task == "classification" and not terms.classes:
        if not np.isin(data.y, (0.0, 1.0)).all():
            raise BadData(NO_CLASSES)
    elif terms.classes and data.classes != terms.classes:
        raise BadData(OTHER_CLASSES)


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


def site_rows(data: PrivateData) -> tuple[SiteRows, Ints]:
    """Common rows first, then private labelled ones; and the places of the labels in the data."""
    positions = np.full(len(data.y), -1) if data.positions is None else data.positions
    private = np.flatnonzero(positions < 0)
    common = np.flatnonzero(positions >= 0)
    common = common[np.argsort(positions[common])]
    at = positions[common]
    if len(np.unique(at)) < len(at):
        raise BadData(
            "an individual that the sites share has two labelled rows. An additive training needs "
            "one row of each."
        )
    own: Ints = np.concatenate([at, len(data.Z) + np.arange(len(private))]).astype(np.int64)
    order: Ints = np.concatenate([common, private]).astype(np.int64)
    return SiteRows(np.concatenate([data.Z, data.X[private]]), own, data.y[order]), order


# --- bytes and words of the stages --------------------------------------------------------------


def _packed(summary: SiteSummary) -> bytes:
    numbers = _NUMBERS.pack(summary.width, summary.private, summary.norm, summary.scores)
    of_targets = np.array([summary.levels, summary.deviations], dtype="<f8")
    return numbers + of_targets.tobytes() + np.packbits(summary.labelled).tobytes()


def _unpacked(text: bytes, n: int, targets: int) -> SiteSummary:
    """A member's summary. It can be false, but not malformed."""
    width, private, norm, scores = _NUMBERS.unpack_from(text)
    of_targets = np.frombuffer(text, "<f8", 2 * targets, offset=SUMMARY).reshape(2, targets)
    rest = SUMMARY + OF_TARGET * targets
    flags = np.unpackbits(np.frombuffer(text, np.uint8, offset=rest), count=n).astype(bool)
    bounded = max(abs(norm), np.abs(of_targets).max()) < LARGEST  # a NaN is not
    sized = 1 <= width <= MOST_OWN and private <= MOST_PRIVATE
    if not (bounded and sized and norm > 0 and of_targets[1].min() >= 0):
        raise BadData("a site's summary of its rows has a number that no rows have.")
    levels, deviations = map(tuple, of_targets.tolist())
    return SiteSummary(flags, width, norm, levels, deviations, private, scores)


def _message_shapes(
    T: Terms, summaries: Sequence[SiteSummary], v: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    encrypted = (T.rows + cross.RANDOM_ROWS, summaries[v].width)
    return encrypted, (2 * T.d[v] + len(T.targets) + 1, cross.SECRET_ROWS)


def _sum_shapes(T: Terms) -> dict[str, tuple[int, ...]]:
    """Of the words of a sum: triangles of P and C, b, sums by owner, two halves of scalars."""
    D = sum(T.d)
    triangle = D * (D + 1) // 2
    scalars = len(T.targets) * (T.n_sites + 1)
    return {
        "P": (triangle,),
        "b": (len(T.targets) * D,),
        "o": (T.n_sites, D),
        "scalars": (2, scalars),
        "C": (triangle,),
    }


def _private_shapes(T: Terms) -> dict[str, tuple[int, ...]]:
    shapes = _sum_shapes(T)
    del shapes["C"]
    _, scalars = shapes["scalars"]
    return shapes | {"scalars": (2, scalars + T.n_sites)}


def _size(shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(map(prod, shapes.values()))


def _flat(words: SiteNumbers) -> Row:
    return np.concatenate([numbers.ravel() for numbers in words.values()])


def _named(row: Row, shapes: Mapping[str, tuple[int, ...]]) -> SiteNumbers:
    ends = np.cumsum([prod(shape) for shape in shapes.values()])[:-1].tolist()
    pieces = np.split(row, ends)
    return {
        name: piece.reshape(shape)
        for (name, shape), piece in zip(shapes.items(), pieces, strict=True)
    }
