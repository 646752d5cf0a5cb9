r"""Scoring together at a site: which individuals it has a record of, then its parts of their
scores.

    additive:    a + Σ_{v∈S} φ_v(x)·β_v^S = E[score | the sites S that have a record of x]
    agreement:   (1/|S|) Σ_{v∈S} f_v(x)

No model is trained and no label is used. Only a receiver opens the sum of the others' parts, and a
single one only if the plan has ``contributions``. Each (model, S) is another equation on an
individual's features, so a site takes part in few of them in an individual's life.

Models of several classes have a score for each: parts are (t, m), class by class, and t is in the
plan. Each class has noise of its own, and all have the steps of the smallest. In an individual's
life the models of a run count as one.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, inf, log2, nan, sqrt

import numpy as np
from jaxtyping import Bool, Float64, Int64

from coreg_core.additive.site_model import ClassModel, SiteModel
from coreg_core.additive.terms import SCORE_GRAIN, SCORE_NOISE
from coreg_core.agreement.solver import Progress
from coreg_core.arrays import Arr, Ints
from coreg_core.errors import BadData, Refused
from coreg_core.objectives.scoring import RECORD, Scoring
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.secure.sums import WORD, power_above
from coreg_core.shapes import Shape
from site_agent.disclosure import Pairs
from site_agent.machine.objective import Answers, Fold, Question, Reply
from site_agent.machine.results import ScoringResult
from site_agent.site_data import keyed, normals

MOST_POWER = 1000
STEPS = 40  # a part without noise has 40 bits


@dataclass(frozen=True, eq=False)
class Batch:
    """One site's individuals to score, in the order of their sorted ids."""

    features: Float64[Arr, "m d"]  # φ, or under the agreement the prediction
    missing: Bool[np.ndarray, " m"]
    model: SiteModel | ClassModel | None
    intercept: float | Arr
    of_run: str  # its model's, as the next three
    trained: str
    name: str
    sites: tuple[str, ...]
    ids_digest: str
    salt: bytes = b""
    instances: str = ""
    ids: tuple[str, ...] = ()
    # Of a standing plan: the places of those that this site asks for, and how many individuals each
    # member can still ask it for today.
    wanted: tuple[int, ...] = ()
    left: Mapping[str, int] = field(default_factory=dict)
    columns: int = 1  # scores of an individual

    @property
    def Z(self) -> Float64[Arr, "m d"]:
        """One row for each individual, as in `PrivateData`: callers take its length."""
        return self.features

    def part(self, rows: Bool[np.ndarray, " m"], present: Sequence[int]) -> Float64[Arr, "*t k"]:
        """This site's part of the scores of these rows; ``present``: positions in ``sites``."""
        if self.model is None:
            return np.asarray(self.features[rows, 0] / len(present))
        return self.model.part(self.features[rows], present).T

    @property
    def power(self) -> int:
        """Parts are multiples of 2 to this power, or of a larger one that another site names."""
        if np.any(self.noise):
            return floor(log2(np.min(self.noise) / SCORE_NOISE * SCORE_GRAIN))
        if self.model is not None:
            return power_above(np.min(self.model.deviation_of_labels)) - STEPS
        complete = self.features[~self.missing]
        return max(-MOST_POWER, power_above(np.abs(complete).max(initial=0.0)) - STEPS)

    @property
    def noise(self) -> float | Arr:
        """The deviation of the noise on a part."""
        if self.model is None or not self.model.weights.noise:
            return 0.0
        return SCORE_NOISE * self.model.deviation_of_labels

    def unknown(self, present: Sequence[int]) -> float:
        """The deviation that the features of absent sites leave; NaN under the agreement, and of
        classes, whose scores are probabilities.
        """
        if self.model is None or self.columns > 1:
            return nan
        return sqrt(self.model.weights.missing_variance(present))


class ScoringComputation:
    """`site_agent.machine.objective.Computation`: checks the plan against model and individuals.

    records → scores
    """

    within = inf
    progress: Progress | None = None

    def __init__(
        self,
        plan: Plan,
        terms: Scoring,
        name: str,
        batch: object,
        pin_threads: Callable[[int], int],
        _random_bytes: object = None,
    ):
        if not isinstance(batch, Batch):
            raise Refused("this site has no model for scoring together.")
        pin_threads(plan.iteration.threads)
        self.plan = plan
        self.terms = terms
        self.name = name
        self.batch = batch
        self.n_unlabelled = len(batch.features)
        self.ids_digest = batch.ids_digest
        self.rounds = 0
        self._ids = batch.ids or tuple(str(i) for i in range(self.n_unlabelled))
        features = np.where(batch.missing[:, None], np.inf, batch.features)
        about = batch.salt + plan.run.encode() + batch.name.encode()
        self.data_digest = hashlib.sha256(
            about + np.ascontiguousarray(features).tobytes()
        ).hexdigest()
        if (batch.of_run, batch.trained) != (terms.of_run, terms.trained):
            raise Refused(
                f"the plan scores with models of run {terms.of_run} ({terms.trained}), but {name} "
                f"was started with one of run {batch.of_run} ({batch.trained}). Give that run's "
                "model with --model."
            )
        if strange := sorted(set(plan.sites) - set(batch.sites)):
            raise Refused(
                f"{', '.join(strange)} took no part in run {batch.of_run}: its model scores with "
                f"{', '.join(batch.sites)}."
            )
        if terms.columns != batch.columns:
            raise Refused(
                f"the plan has {terms.columns} scores of each individual, and this site's model "
                "another number. Submit the scoring again."
            )
        several = (batch.columns, self.n_unlabelled)
        self._shape = several if batch.columns > 1 else several[1:]  # of parts and scores

    def begin(self, sites: tuple[str, ...], key: bytes, chain: bytes, fold: Fold) -> None:  # noqa: ARG002
        self._sites = sites
        self._receivers = [site for site in sites if site in (self.terms.receivers or sites)]
        self._question: Question | None = self._asked("records")
        self._scores: Arr | None = None
        self._parts: dict[str, Arr] = {}
        self.rounds = 0

    def ask(self) -> Question | None:
        return self._question

    def _asked(self, kind: str) -> Question:
        """What the plan allows is what each site sends, but for its part for itself."""
        bound = self.terms.shape(kind, self.n_unlabelled, self._sites)
        shapes = {}
        for site in self._sites:
            to_each = {
                r: size for r, size in bound.to_each.items() if r in self._sites and r != site
            }
            shapes[site] = Shape(to_all=bound.to_all, to_each=to_each)
        return Question(kind, shapes)

    # --- answers --------------------------------------------------------------------------------

    def answer(self, question: Question, chain: bytes) -> Reply:  # noqa: ARG002
        if question.kind == "records":
            model = hashlib.sha256(self.batch.name.encode()).digest()
            power = self.batch.power.to_bytes(2, "little", signed=True)
            return Reply(to_all=model + power + np.packbits(~self.batch.missing).tobytes())
        words = np.where(self._mine, self._steps(), 0).tobytes()
        return Reply(
            to_each=dict.fromkeys(question.shapes[self.name].to_each, words),
            blinded=not self.terms.contributions,
            scores=self._opened(),
        )

    def _own_parts(self) -> Float64[Arr, "*t m"]:
        """This site's part of each score; 0 where it has no record."""
        parts = np.zeros(self._shape)
        for k, present in enumerate(self._sets):
            if self.name in present:
                rows = self._which == k
                parts[..., rows] = self.batch.part(rows, self._positions(present))
        return parts

    def _positions(self, present: tuple[str, ...]) -> list[int]:
        """Where these sites are in the model."""
        return [self.batch.sites.index(site) for site in present]

    def _steps(self) -> Int64[Ints, "*t m"]:
        """Its parts with noise, in steps of the common power of two."""
        part = self._own_parts()
        if np.any(self.batch.noise):
            part[..., self._mine] += (self.batch.noise * self._normals()).T
        steps = np.rint(np.ldexp(part, -self.power))
        return np.clip(steps, -(2.0**53), 2.0**53).astype(np.int64)

    def _normals(self) -> Float64[Arr, "k *t"]:
        """Of those that it has a part of: the same for an individual, model, class and present
        sites, so that it does not average out.
        """
        secret = self.batch.salt + b"score noise" + self.batch.name.encode()
        secrets = [
            hashlib.sha256(
                secret + f"{(self._ids[i], self._sets[self._which[i]])}{column or ''}".encode()
            ).digest()
            for i in np.flatnonzero(self._mine).tolist()
            for column in range(self.batch.columns)
        ]
        return normals(secrets).reshape(-1, *self._shape[:-1])

    def _opened(self) -> Pairs | None:
        """The scores that others get with this site's part."""
        if self._receivers == [self.name]:
            return None
        return self._pairs(self._mine)

    def _pairs(self, opened: Bool[np.ndarray, " m"]) -> Pairs:
        """These individuals, each with the model and the sites that score it."""
        secret = self.batch.salt
        models = [
            keyed(secret, b"model", repr((self.batch.name, present)).encode())
            for present in self._sets
        ]
        pairs = b"".join(
            keyed(secret, b"scored", self._ids[i].encode()) + models[self._which[i]]
            for i in np.flatnonzero(opened).tolist()
        )
        return np.frombuffer(pairs, dtype=WORD).reshape(-1, 2)

    # --- what all sites said --------------------------------------------------------------------

    def take(self, question: Question, answers: Answers, chain: bytes) -> None:  # noqa: ARG002
        self.rounds += 1
        if question.kind == "records":
            self._take_records(answers.to_all)
            self._question = self._asked("scores")
            return
        if self.name in self._receivers:
            self._take_scores(answers)
        self._question = None

    def _take_records(self, texts: Mapping[str, bytes]) -> None:
        """Which sites have a record of each individual."""
        if len({text[:32] for text in texts.values()}) > 1:
            raise BadData(
                f"the sites have models of different attempts at run {self.terms.of_run}. Train "
                "again, then score with that run."
            )
        powers = [int.from_bytes(text[32:RECORD], "little", signed=True) for text in texts.values()]
        self.power = max(powers)
        flags = [
            np.unpackbits(np.frombuffer(texts[site][RECORD:], np.uint8), count=self.n_unlabelled)
            for site in self._sites
        ]
        self._present = np.array(flags, dtype=bool)  # (sites, m)
        # The different sets of sites, and (m,) the place of each individual's set among them.
        sets, which = np.unique(self._present, axis=1, return_inverse=True)
        self._sets = [
            tuple(self._sites[v] for v in np.flatnonzero(column).tolist()) for column in sets.T
        ]
        self._which = which.reshape(-1)
        self._scored = self._present.sum(axis=0) >= self.plan.membership.min_sites
        self._mine = self._scored & self._present[self._sites.index(self.name)]

    def _take_scores(self, answers: Answers) -> None:
        """At a receiver: its own part, those of the others, and the constant."""
        words = {site: np.frombuffer(text, WORD) for site, text in answers.to_me.items()}
        own = self._own_parts()
        total = np.add.reduce(list(words.values()), dtype=WORD)
        score = (self.batch.intercept + own.T).T + self._values(total)
        self._scores = np.where(self._scored, score, np.nan)
        if self.terms.contributions:
            self._parts = {site: self._values(part) for site, part in words.items()}
        if self.batch.model is not None and self.batch.columns == 1:
            self._parts[self.name] = own

    def _values(self, words: np.ndarray) -> Float64[Arr, "*t m"]:
        """Words of parts in the target's units."""
        steps = words.view(np.int64).reshape(self._shape)
        return np.ldexp(steps.astype(np.float64), self.power)

    def news(self, run: str) -> None:
        """Two steps need none."""

    # --- the end --------------------------------------------------------------------------------

    @property
    def outcome(self) -> tuple[Outcome, str]:
        what = f"{self.n_unlabelled} instances scored together by {len(self._sites)} sites"
        return Outcome.CONVERGED, what

    def result(self) -> ScoringResult:
        """The scores, if this site is a receiver."""
        if self._scores is None:
            return ScoringResult(*self.outcome)
        unknown = [
            self.batch.unknown(self._positions(present)) if present else np.nan
            for present in self._sets
        ]
        contributions = {}
        for site in sorted(self._parts):
            has_part = self._scored & self._present[self._sites.index(site)]
            contributions[site] = np.where(has_part, self._parts[site], np.nan)
        return ScoringResult(
            *self.outcome,
            findings=tuple(self._findings()),
            scores=self._scores.T,
            present=tuple(self._sets[k] for k in self._which.tolist()),
            missing=np.array(unknown)[self._which],
            contributions=contributions,
        )

    def _findings(self) -> list[str]:
        sentences = list[str]()
        of_all = f"of {self.n_unlabelled} individuals"
        whole = int((self._present.sum(axis=0) == len(self.batch.sites)).sum())
        few = int((~self._scored).sum())
        if partly := self.n_unlabelled - whole - few:
            sentences.append(
                f"{partly} {of_all} lack a record at some site. Their scores are those of the "
                "other sites, which the column `sites` names"
            )
        if few:
            least = self.plan.membership.min_sites
            sentences.append(
                f"no score for {few} {of_all} (empty cells): fewer than min_sites = {least} sites "
                "have a record"
            )
        return sentences
