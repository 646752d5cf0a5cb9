r"""A site's part in scoring together: which individuals it has a record of, then its parts of their scores, for each receiver.

    additive: a + Σ_{v∈S} φ_v(x)·β_v^S = E[score | the sites S that have a record of x]        agreement: (1/|S|) Σ_{v∈S} f_v(x)

No model is trained and no label is used. Only a receiver opens the sum of the others' parts, and a single one only if the plan
has ``contributions``. Each (model, S) is another equation on an individual's features, so a site takes part in few of them in an
individual's life.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log2

import numpy as np
from jaxtyping import Bool, Float64, Int64

from coreg_core.additive.site_model import SiteModel
from coreg_core.agreement.schedules import Progress
from coreg_core.arrays import Arr, Ints
from coreg_core.computation.question import Lengths, Question
from coreg_core.errors import BadData, Refused
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.secure.sums import WORD, Layout, power_above
from site_agent.consent.objections import Consent
from site_agent.machine.job import Delivery, Fold, Reply, SiteResult
from site_agent.site_data import keyed, normals

GRAIN, NOISE = (
    64,
    0.05,
)  # of a part, in common deviations of the labels: an exact score would be an equation of 53 bits
MOST_POWER, STEPS = 1000, 40  # a part without noise has 40 bits


@dataclass(frozen=True, eq=False)
class Batch:
    """One site's individuals to score, in the order of their sorted ids; computed before the agent connects."""

    features: Float64[Arr, "m d"]  # φ, or under the agreement the prediction
    missing: Bool[np.ndarray, " m"]
    model: SiteModel | None
    intercept: float
    of_run: str  # its model's, as the next three
    trained: str
    name: str
    sites: tuple[str, ...]
    ids_digest: str
    salt: bytes = b""
    instances: str = ""
    ids: tuple[str, ...] = ()

    @property
    def Z(self) -> Float64[Arr, "m d"]:
        """One row for each individual, as in `PrivateData`: callers take its length."""
        return self.features

    def part(self, rows: Bool[np.ndarray, " m"], present: Sequence[int]) -> Float64[Arr, " k"]:
        """This site's part of the scores of these rows, if these sites are present (positions in ``sites``)."""
        if self.model is None:
            return np.asarray(self.features[rows, 0] / len(present))
        return np.asarray(self.model.part(self.features[rows], present))

    @property
    def power(self) -> int:
        """Parts are multiples of 2 to this power, or of a larger one that another site names."""
        if self.noise:
            return floor(log2(self.noise / NOISE / GRAIN))
        if self.model is not None:
            return power_above(self.model.deviation_of_labels) - STEPS
        known = self.features[~self.missing]
        return max(-MOST_POWER, power_above(float(np.abs(known).max(initial=0.0))) - STEPS)

    @property
    def noise(self) -> float:
        """The deviation of the noise on a part."""
        return (
            0.0
            if self.model is None or not self.model.weights.noise
            else NOISE * self.model.deviation_of_labels
        )

    def unknown(self, present: Sequence[int]) -> float:
        """The deviation that the features of absent sites leave; NaN under the agreement."""
        return (
            float("nan")
            if self.model is None
            else float(np.sqrt(self.model.weights.missing_variance(present)))
        )


class ScoringJob:
    """`site_agent.machine.job.Job`: checks the plan against the model and the individuals."""

    def __init__(
        self,
        plan: Plan,
        terms: Scoring,
        name: str,
        batch: Batch,
        pin_threads: Callable[[int], int],
        consent: Consent,
    ):
        pin_threads(plan.iteration.threads)
        self.plan, self.terms, self.name, self.batch, self._consent = (
            plan,
            terms,
            name,
            batch,
            consent,
        )
        self.n_unlabelled, self.ids_digest = len(batch.features), batch.ids_digest
        self._ids = batch.ids or tuple(str(i) for i in range(self.n_unlabelled))
        known = np.where(batch.missing[:, None], np.inf, batch.features)
        about = batch.salt + plan.run.encode() + batch.name.encode()
        self.data_digest = hashlib.sha256(about + np.ascontiguousarray(known).tobytes()).hexdigest()
        if (batch.of_run, batch.trained) != (terms.of_run, terms.trained):
            raise Refused(
                f"the plan scores with models of run {terms.of_run} ({terms.trained}), but {name} was started with one of run "
                f"{batch.of_run} ({batch.trained}). Give that run's model with --model."
            )
        if strangers := sorted(set(plan.sites) - set(batch.sites)):
            raise Refused(
                f"{', '.join(strangers)} took no part in run {terms.of_run} and has no model of it."
            )
        self.progress: Progress | None = None
        self.rounds, self._done = 0, False
        self._scores: Arr | None = None
        self._shares: Mapping[int, Arr] = {}

    def begin(self, sites: tuple[str, ...], key: bytes, share: Fold) -> Question:  # noqa: ARG002
        self._sites, self.rounds, self._scores, self._done = sites, 0, None, False
        self._at = [
            self.batch.sites.index(site) for site in sites
        ]  # positions in the model of those in this run
        length = Lengths(to_all=32 + 2 + -(-self.n_unlabelled // 8))
        return self._round("records", (length,) * len(sites))

    def _round(self, kind: str, lengths: tuple[Lengths, ...]) -> Question:
        return Question(kind, Layout(0, 0, 0), (), tuple(range(len(self._sites))), lengths)

    @property
    def _me(self) -> int:
        return self._sites.index(self.name)

    # --- stages ---------------------------------------------------------------------------------------------------

    def reply(self, asked: Question, chain: bytes) -> Reply:  # noqa: ARG002
        if asked.kind == "records":
            model = hashlib.sha256(self.batch.name.encode()).digest()
            power = self.batch.power.to_bytes(2, "little", signed=True)
            return Reply(to_all=model + power + np.packbits(~self.batch.missing).tobytes())
        self._open()
        words = np.where(self._mine, self._steps(), 0).tobytes()
        to_each = {r: words for r in self._receivers if r != self._me}
        return Reply(to_each=to_each, blinded=not self.terms.contributions)

    def receive(self, asked: Question, delivery: Delivery, chain: bytes) -> Question | None:  # noqa: ARG002
        """At a receiver: its own part, those of the others, and the constant."""
        self.rounds += 1
        if asked.kind == "records":
            return self._of_records(delivery.to_all)
        if self._me in self._receivers:
            own, parts = (
                self._parts(),
                {v: np.frombuffer(text, WORD) for v, text in delivery.to_me.items()},
            )
            total = own + self._values(np.asarray(np.sum(list(parts.values()), axis=0, dtype=WORD)))
            self._scores = np.where(self._scored, self.batch.intercept + total, np.nan)
            known = (
                {v: self._values(words) for v, words in parts.items()}
                if self.terms.contributions
                else {}
            )
            self._shares = known | ({} if self.batch.model is None else {self._me: own})
        self._done = True
        return None

    def _of_records(self, texts: Sequence[bytes]) -> Question:
        """Which sites have a record of each individual; sites are positions in this run, as in ``_receivers``."""
        if len({text[:32] for text in texts}) > 1:
            raise BadData(
                f"the sites have models of different attempts at run {self.terms.of_run}. Train again, then score with that run."
            )
        self._power = max(int.from_bytes(text[32:34], "little", signed=True) for text in texts)
        flags = [
            np.unpackbits(np.frombuffer(text, np.uint8, offset=34), count=self.n_unlabelled)
            for text in texts
        ]
        self._present = np.array(flags, dtype=bool)  # (sites, m)
        sets, which = np.unique(self._present, axis=1, return_inverse=True)
        self._sets = [
            tuple(np.flatnonzero(column).tolist()) for column in sets.T
        ]  # the different sets of sites
        self._which = which.reshape(-1)  # (m,), the place of each individual's set among them
        least, named = self.plan.membership.min_sites, self.terms.receivers or self.plan.sites
        self._scored = np.array([len(S) >= least for S in self._sets], dtype=bool)[self._which]
        self._mine = self._scored & self._present[self._me]
        self._receivers = [r for r, site in enumerate(self._sites) if site in named]
        size = 8 * self.n_unlabelled
        to_each = [{r: size for r in self._receivers if r != v} for v in range(len(self._sites))]
        return self._round("scores", tuple(Lengths(to_each=each) for each in to_each))

    def _values(self, words: np.ndarray) -> Float64[Arr, " m"]:
        """Words of parts in the target's units."""
        return np.ldexp(words.view(np.int64).astype(np.float64), self._power)

    def _parts(self) -> Float64[Arr, " m"]:
        """This site's part of each score; 0 where it has no record."""
        out = np.zeros(self.n_unlabelled)
        for k, S in enumerate(self._sets):
            if self._me in S:
                rows = np.asarray(self._which == k)
                out[rows] = self.batch.part(rows, [self._at[v] for v in S])
        return out

    def _steps(self) -> Int64[Ints, " m"]:
        """Its parts with noise, in steps of the common power of two."""
        part = self._parts()
        if self.batch.noise:
            part += self.batch.noise * self._normals()
        steps: Ints = np.clip(np.rint(np.ldexp(part, -self._power)), -(2.0**53), 2.0**53).astype(
            np.int64
        )
        return steps

    def _normals(self) -> Float64[Arr, " m"]:
        """The same for an individual, the model and the present sites, so that it does not average out."""
        secret = self.batch.salt + b"score noise" + self.batch.name.encode()
        about = zip(self._ids, self._which.tolist(), strict=True)
        return normals(
            [
                hashlib.sha256(secret + repr((text, self._names(k))).encode()).digest()
                for text, k in about
            ]
        )

    def _names(self, k: int) -> tuple[str, ...]:
        return tuple(self._sites[v] for v in self._sets[k])

    def _open(self) -> None:
        """Count the scores that others get with this site's part."""
        if self._receivers == [self._me]:
            return
        secret, ids = self.batch.salt, self._ids
        names = map(self._names, range(len(self._sets)))
        sets = [keyed(secret, b"model", repr((self.batch.name, each)).encode()) for each in names]
        rows = np.flatnonzero(self._mine).tolist()
        found = b"".join(
            keyed(secret, b"scored", ids[i].encode()) + sets[self._which[i]] for i in rows
        )
        scores = np.frombuffer(found, dtype=WORD).reshape(-1, 2)
        self._consent.open_scores(self.plan, self.ids_digest, scores)

    # --- the end --------------------------------------------------------------------------------------------------

    @property
    def outcome(self) -> tuple[Outcome, str] | None:
        if not self._done:
            return None
        return (
            Outcome.CONVERGED,
            f"{self.n_unlabelled} instances scored together by {len(self._sites)} sites",
        )

    def result(self) -> SiteResult:
        """The scores, if this site is a receiver."""
        assert self.outcome is not None
        if self._scores is None:
            return SiteResult(*self.outcome, self.plan)
        names = [self._names(k) for k in range(len(self._sets))]
        unknown = np.array(
            [self.batch.unknown([self._at[v] for v in S]) if S else np.nan for S in self._sets]
        )
        return SiteResult(
            *self.outcome,
            self.plan,
            scores=self._scores,
            present=tuple(names[k] for k in self._which.tolist()),
            missing=unknown[self._which],
            contributions={
                self._sites[v]: np.where(self._scored & self._present[v], self._shares[v], np.nan)
                for v in sorted(self._shares)
            },
            findings=tuple(self._findings()),
        )

    def _findings(self) -> list[str]:
        assert self._scores is not None
        whole = int((self._present.sum(axis=0) == len(self.batch.sites)).sum())
        found = []
        few, of = int(np.isnan(self._scores).sum()), f"of {self.n_unlabelled} individuals"
        if partly := self.n_unlabelled - whole - few:
            told = "Their scores are those of the other sites, which the column `sites` names"
            found.append(f"{partly} {of} lack a record at some site. {told}")
        if few:
            least = self.plan.membership.min_sites
            found.append(
                f"no score for {few} {of} (empty cells): fewer than min_sites = {least} sites have a record"
            )
        return found
