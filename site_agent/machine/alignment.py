"""A site's part in an alignment: its list of points, the passes of other lists, and the shared ids."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coreg_core.arrays import Arr
from coreg_core.computation.alignment import (
    BLOCK,
    CANARIES,
    KEY_WORDS,
    SIZES,
    AlignmentComputation,
    size_class,
    tally,
)
from coreg_core.computation.question import Question
from coreg_core.errors import BadData, Refused
from coreg_core.objectives.alignment import Alignment
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from site_agent.id_points import (
    Pairs,
    Points,
    exponents,
    multiplied,
    packed,
    points_of,
    public_key,
    unpacked,
)
from site_agent.machine.job import Aligned, SiteResult, Sums


@dataclass(frozen=True, eq=False)
class IdList:
    """A site's ids, normalised and distinct. The other fields are as in `PrivateData`; no instance is shared yet."""

    ids: tuple[str, ...]
    ids_digest: str
    salt: bytes = b""
    instances: str = ""

    @property
    def Z(self) -> Arr:
        """One number, because an offer has to state at least one instance."""
        return np.zeros(1)


class AlignmentJob(Sums):
    """Each attempt has other secrets, or a member could ask the same exponents again; all follow from the site's salt."""

    def __init__(self, plan: Plan, terms: Alignment, name: str, ids: IdList):
        digest = hashlib.sha256(ids.salt + plan.run.encode())
        for text in ids.ids:
            digest.update(len(text.encode()).to_bytes(8, "little") + text.encode())
        super().__init__(plan, name, 1, ids.ids_digest, digest.hexdigest())
        self.terms, self.list = terms, ids
        if not ids.ids:
            raise BadData("this site has no id to align.")
        if len(ids.ids) > terms.max_ids:
            raise BadData(f"this site has more ids than the plan's max_ids = {terms.max_ids}.")

    def enter(self, sites: tuple[str, ...], key: bytes) -> AlignmentComputation:
        """Draw the secrets, and forget earlier ones."""
        about = repr([self.plan.run, sites]).encode()
        self.sites, self._position, self._about = (
            sites,
            sites.index(self.name),
            hashlib.sha256(about).digest(),
        )
        self._seed = hmac.new(
            self.list.salt + key, b"coreg alignment" + about, hashlib.sha256
        ).digest()
        self._mark_key = hmac.new(key, b"coreg alignment marks" + about, hashlib.sha256).digest()
        self._exponents = exponents(self._seed)
        self._order: list[str] = []
        self._cells: Arr | None = None
        self._found: dict[str, int] | None = None
        self._final: dict[int, Points] = {}
        return AlignmentComputation(self.terms, len(sites))

    def _secret(self, purpose: bytes) -> bytes:
        return hmac.new(self._seed, purpose, hashlib.sha256).digest()

    # --- answers --------------------------------------------------------------------------------------------------

    def answer(self, asked: Question) -> tuple[Arr, tuple[float, ...]]:
        if asked.kind != "publish":
            self._require_published(asked.targets)
        match asked.kind:
            case "publish":
                return self._published(), ()
            case "pass":
                return self._passed(asked), ()
            case "take":
                self._final[asked.place[1]] = multiplied(self._received(asked), self._exponents.end)
                return np.zeros((0, 1)), (0.0,)
            case "canaries":
                self._require_distinct()
                return self._slot(packed(self._canaries())), ()
            case "tally":
                start, cells, width = asked.place
                self._require_canaries(asked.targets)
                return self._tallied(width)[start : start + cells], ()
            case _:
                raise Refused("a question of another objective.")

    def _published(self) -> Arr:
        sizes = np.zeros((len(SIZES), 1))
        sizes[size_class(len(self.list.ids))] = 1.0
        return np.concatenate([self._slot(packed(public_key(self._secret(b"key")))), sizes])

    def _slot(self, words: Arr) -> Arr:
        """Words in this site's place of a vector that has one for each site."""
        out = np.zeros((KEY_WORDS * len(self.sites), 1))
        out[KEY_WORDS * self._position : KEY_WORDS * (self._position + 1)] = words
        return out

    def _require_published(self, published: Arr) -> None:
        """Check that the sum has this site's key and its number of ids: other members can add to any place of it."""
        M = KEY_WORDS * len(self.sites)
        mine, sizes = self._published(), published[M : M + len(SIZES), 0]
        own = slice(KEY_WORDS * self._position, KEY_WORDS * (self._position + 1))
        if (published[own] != mine[own]).any() or sizes[size_class(len(self.list.ids))] < 1.0:
            raise BadData("some site changed what this site published.")

    def _pairs(self, published: Arr) -> Pairs:
        keys = published[: KEY_WORDS * len(self.sites)].reshape(-1, KEY_WORDS, 1)
        return Pairs(self._secret(b"key"), [unpacked(key, 32) for key in keys], self._about)

    def _received(self, asked: Question) -> Points:
        owner, block, hop, count, _ = asked.place
        M, published = len(self.sites), KEY_WORDS * len(self.sites) + len(SIZES)
        sender = (owner + hop - 1) % M
        pairs = self._pairs(asked.targets)
        return pairs.open(
            asked.targets[published:], count, (owner, block, hop), sender, self._position
        )

    def _passed(self, asked: Question) -> Arr:
        owner, block, hop, count, size = asked.place
        if hop == 0:
            texts = self._padded(size)[block * BLOCK : block * BLOCK + count]
            points = multiplied(points_of(texts, self.plan.run), self._exponents.start)
        else:
            points = multiplied(self._received(asked), self._exponents.passing)
        receiver = (self._position + 1) % len(self.sites)
        return self._pairs(asked.targets).seal(
            points, (owner, block, hop + 1), self._position, receiver
        )

    def _padded(self, size: int) -> Sequence[str]:
        """Canaries, ids and padding in a secret order. A prefix keeps the three apart."""
        if size < len(self.list.ids) + CANARIES:
            raise BadData("the sum of the sizes has no room for this site's ids.")
        if len(self._order) != size:
            texts = [f"c{i}" for i in range(CANARIES)] + [f"i{text}" for text in self.list.ids]
            texts += [
                f"p{self._secret(i.to_bytes(8, 'little')).hex()}" for i in range(size - len(texts))
            ]
            self._order = sorted(texts, key=lambda text: self._secret(b"order " + text.encode()))
        return self._order

    # --- fingerprints ---------------------------------------------------------------------------------------------

    def _marks(self) -> dict[str, int]:
        """The fingerprint of each own text, padding left out; computed once, after the last block is back."""
        if self._found is None:
            self._found = {}
            for block, points in sorted(self._final.items()):
                for text, point in zip(
                    self._order[block * BLOCK : (block + 1) * BLOCK], points, strict=True
                ):
                    if not text.startswith("p"):
                        mark = hmac.new(self._mark_key, point.tobytes(), hashlib.sha256).digest()[
                            :8
                        ]
                        self._found[text] = int.from_bytes(mark, "little")
        return self._found

    def _tallied(self, width: int) -> Arr:
        if self._cells is None:
            self._cells = tally(np.array(list(self._marks().values()), dtype=np.uint64), width)
        return self._cells

    def _require_distinct(self) -> None:
        """Check the final points of the own list, padding included: distinct texts have distinct points."""
        final = np.concatenate([points for _, points in sorted(self._final.items())])
        if len(np.unique(final, axis=0)) < len(final):
            raise BadData("some site repeated points of this site's list.")

    def _canaries(self) -> bytes:
        marks = self._marks()
        about = b"".join(marks[f"c{i}"].to_bytes(8, "little") for i in range(CANARIES))
        return hmac.new(self._mark_key, b"canaries" + about, hashlib.sha256).digest()

    def _require_canaries(self, known: Arr) -> None:
        """Check that the canaries of all lists became the same points, before this site adds to any count."""
        slots = known[-KEY_WORDS * len(self.sites) :].reshape(-1, KEY_WORDS)
        if (slots != packed(self._canaries()).reshape(-1)).any():
            raise BadData(
                "the canaries of some list did not come back: some site changed a list. No result of this alignment is used."
            )

    # --- the end --------------------------------------------------------------------------------------------------

    def ended(self, outcome: Outcome, reason: str) -> SiteResult:
        """The shared ids of this site."""
        state, M = self.state, self.computation.n_sites
        if state.counts is None or not outcome.good:
            return SiteResult(outcome, reason, self.plan)
        marks = {text[1:]: mark for text, mark in self._marks().items() if text.startswith("i")}
        times = state.counts.of(np.array(list(marks.values()), dtype=np.uint64)).tolist()
        known_to = tuple((k, sum(count >= k for count in times)) for k in range(2, M + 1))
        ids = tuple(sorted(text for text, count in zip(marks, times, strict=True) if count == M))
        return SiteResult(outcome, reason, self.plan, aligned=Aligned(ids, known_to))
