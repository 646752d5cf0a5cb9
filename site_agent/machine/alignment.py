"""Alignment of ids at a site: its list of points, the passes of other lists, and the shared ids.

    list sizes → for each list and block: a pass at the owner, then at each other site → canaries →
    tally …

Each pass has one answering site, whose part is sealed for the next one; the last returns the list
to its owner. Every site multiplies each list once (`site_agent.id_points`), so every list ends as
points that all sites made together. Before the tally every site compares what all sites' canaries
became: a changed list ends the run before a count is known. The tally is a sealed sum
(`coreg_core.secure.tally`).
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from coreg_core.agreement.solver import Progress
from coreg_core.arrays import Arr
from coreg_core.errors import BadData, Refused
from coreg_core.objectives.alignment import (
    BLOCK,
    DIGEST,
    POINT,
    SIZE_CLASSES,
    TALLY_WORDS,
    Alignment,
)
from coreg_core.outcomes import Notice, Outcome
from coreg_core.plan import Plan
from coreg_core.secure.sums import WORD
from coreg_core.secure.tally import COLUMNS, ROWS, Cells, Counts, read, tally, width_for
from coreg_core.shapes import Shape
from site_agent.id_points import Points, exponents, multiplied, points_of
from site_agent.machine.objective import Answers, Fold, Question, Reply
from site_agent.machine.results import AlignmentResult

CANARIES = 64
# Lists are padded to the least of these sizes that holds the largest: members learn the sizes as
# classes, without names.
SIZES = tuple(ceil(128 * 2 ** (k / 4)) for k in range(SIZE_CLASSES))


def size_class(n_ids: int) -> int:
    """The index in `SIZES` for a list of so many ids and the canaries."""
    return next(k for k, size in enumerate(SIZES) if size >= n_ids + CANARIES)


@dataclass(frozen=True, eq=False)
class IdList:
    """A site's ids, normalised and distinct. The other fields are as in `PrivateData`."""

    ids: tuple[str, ...]
    ids_digest: str
    salt: bytes = b""
    instances: str = ""

    @property
    def Z(self) -> Arr:
        """One number, because an offer has to state at least one instance."""
        return np.zeros(1)


class _Pass(NamedTuple):
    """One block of one site's list at one hop: positions of owner, sender and receiver."""

    owner: int
    block: int
    hop: int
    sender: int
    receiver: int
    points: int


class AlignmentComputation:
    """`site_agent.machine.objective.Computation`.

    Each attempt has other secrets, or a member could ask the same exponents again. All follow from
    the site's salt and a key of the attempt's members.
    """

    within = inf
    progress: Progress | None = None

    def __init__(self, plan: Plan, terms: Alignment, name: str, data: object, *_drivers: object):
        if not isinstance(data, IdList):
            raise Refused("this site was not started with ids to align.")
        if not data.ids:
            raise BadData("this site has no id to align.")
        if len(data.ids) > terms.max_ids:
            raise BadData(f"this site has more ids than the plan's max_ids = {terms.max_ids}.")
        digest = hashlib.sha256(data.salt + plan.run.encode())
        for text in data.ids:
            digest.update(len(text.encode()).to_bytes(8, "little") + text.encode())
        self.plan = plan
        self.terms = terms
        self.name = name
        self.list = data
        self.n_unlabelled = 1
        self.ids_digest = data.ids_digest
        self.data_digest = digest.hexdigest()
        self._classes: list[int] = []  # sites in each size class, once known
        self.rounds = 0  # passes, then blocks of the tally

    def begin(self, sites: tuple[str, ...], key: bytes, chain: bytes, fold: Fold) -> None:  # noqa: ARG002
        """Draw the secrets, and forget earlier ones."""
        about = repr([self.plan.run, sites]).encode()
        self.sites = sites
        self._fold = fold
        self._seed = _keyed(self.list.salt + key, b"coreg alignment" + about)
        self._mark_key = _keyed(key, b"coreg alignment marks" + about)
        self.exponents = exponents(self._seed)
        self._classes = []
        self.rounds = 0
        self._order: list[str] = []
        self._received: Points | None = None  # the multiplied block that it passes next
        self._final: dict[int, Points] = {}  # blocks of its own list, after all sites
        self._marks: dict[str, int] = {}  # the fingerprint of each own text, without padding
        self._compared = False  # the canaries of all sites
        self._cells: Cells | None = None  # this site's tally
        self._total: list[np.ndarray] = []  # the opened blocks
        self._counts: Counts | None = None

    # --- sizes ----------------------------------------------------------------------------------

    @property
    def _size(self) -> int:
        """The length of every padded list."""
        return SIZES[max(k for k, sites in enumerate(self._classes) if sites)]

    @property
    def _blocks(self) -> int:
        return ceil(self._size / BLOCK)

    @property
    def _passes(self) -> int:
        return len(self.sites) ** 2 * self._blocks

    @property
    def _width(self) -> int:
        """Cells of a row of the tally: for distinct ids at all sites."""
        return width_for(sum(sites * SIZES[k] for k, sites in enumerate(self._classes)))

    @property
    def _tally_blocks(self) -> int:
        return ceil(ROWS * self._width * COLUMNS / TALLY_WORDS)

    # --- questions ------------------------------------------------------------------------------

    def ask(self) -> Question | None:
        if not self._classes:
            return self._of_all("list sizes", Shape(summed=SIZE_CLASSES))
        if self.rounds < self._passes:
            place = self._pass()
            to_each = {self.sites[place.receiver]: POINT * place.points}
            shapes = {self.sites[place.sender]: Shape(to_each=to_each)}
            return Question("pass", shapes, about=json.dumps(place).encode())
        if not self._compared:
            return self._of_all("canaries", Shape(to_all=DIGEST))
        if self._counts is None:
            start, end = self._tally_part()
            return self._of_all("tally", Shape(summed=end - start), about=b"%d" % start)
        return None

    def _of_all(self, kind: str, shape: Shape, about: bytes = b"") -> Question:
        shapes = dict.fromkeys(self.sites, shape)
        return Question(kind, shapes, shape.summed, has_parts=shape.to_all > 0, about=about)

    def _pass(self) -> _Pass:
        """The next one: lists in site order, then blocks, then hops."""
        M = len(self.sites)
        block, hop = divmod(self.rounds, M)
        owner, block = divmod(block, self._blocks)
        points = min(BLOCK, self._size - block * BLOCK)
        return _Pass(owner, block, hop, (owner + hop) % M, (owner + hop + 1) % M, points)

    def _tally_part(self) -> tuple[int, int]:
        """The first word of the next block, and the end of it."""
        start = (self.rounds - self._passes) * TALLY_WORDS
        return start, min(start + TALLY_WORDS, ROWS * self._width * COLUMNS)

    # --- answers --------------------------------------------------------------------------------

    def answer(self, question: Question, chain: bytes) -> Reply:  # noqa: ARG002
        match question.kind:
            case "list sizes":
                sizes = np.zeros(SIZE_CLASSES, dtype=WORD)
                sizes[size_class(len(self.list.ids))] = 1
                return Reply(summed=sizes)
            case "pass":
                place = self._pass()
                return Reply(to_each={self.sites[place.receiver]: self.passed(place).tobytes()})
            case "canaries":
                return Reply(to_all=self._canaries())
            case _:
                if self._cells is None:
                    marks = np.array(list(self._marks.values()), dtype=np.uint64)
                    self._cells = tally(marks, self._width)
                start, end = self._tally_part()
                return Reply(summed=self._cells.reshape(-1)[start:end].astype(WORD))

    def passed(self, place: _Pass) -> Points:
        if place.hop == 0:
            texts = self._padded()[place.block * BLOCK : place.block * BLOCK + place.points]
            return multiplied(points_of(texts, self.plan.run), self.exponents.start)
        assert self._received is not None, "it came with the pass before"
        return self._received

    def _padded(self) -> Sequence[str]:
        """Canaries, ids and padding in a secret order. A prefix keeps the three apart."""
        if not self._order:
            texts = [f"c{i}" for i in range(CANARIES)] + [f"i{text}" for text in self.list.ids]
            n_padding = self._size - len(texts)
            texts += [f"p{self.secret(b'%d' % i).hex()}" for i in range(n_padding)]
            self._order = sorted(texts, key=lambda text: self.secret(b"order " + text.encode()))
        return self._order

    def secret(self, purpose: bytes) -> bytes:
        return _keyed(self._seed, purpose)

    def _canaries(self) -> bytes:
        marks = [self._marks[f"c{i}"].to_bytes(8, "little") for i in range(CANARIES)]
        return _keyed(self._mark_key, b"canaries" + b"".join(marks))

    # --- what all sites said --------------------------------------------------------------------

    def take(self, question: Question, answers: Answers, chain: bytes) -> None:
        match question.kind:
            case "list sizes":
                assert answers.total is not None
                self._take_sizes(answers.total.tolist())
            case "pass":
                self.take_pass(self._pass(), answers.to_me)
                self.rounds += 1
            case "canaries":
                if set(answers.to_all.values()) != {self._canaries()}:
                    raise BadData(
                        "the canaries of some list did not come back: some site changed a list. No "
                        "result of this alignment is used."
                    )
                self._compared = True
            case _:
                assert answers.total is not None
                self._total.append(answers.total)
                self.rounds += 1
                if len(self._total) == self._tally_blocks:
                    self._counts = self._fold(("tally", chain), self._read)

    def _take_sizes(self, classes: list[int]) -> None:
        own = size_class(len(self.list.ids))
        largest = max((k for k, sites in enumerate(classes) if sites), default=0)
        if sum(classes) != len(self.sites) or largest > size_class(self.terms.max_ids):
            raise BadData("some site stated a number of ids that the plan does not allow.")
        if classes[own] < 1:
            raise BadData("some site changed what this site stated of its number of ids.")
        self._classes = classes

    def take_pass(self, place: _Pass, to_me: Mapping[str, bytes]) -> None:
        """Multiply the block that came to this site; the last hop returns one of its own."""
        if self.sites[place.receiver] != self.name:
            return
        data = to_me[self.sites[place.sender]]
        points = np.frombuffer(data, dtype=np.uint8).reshape(place.points, POINT)
        if place.hop < len(self.sites) - 1:
            self._received = multiplied(points, self.exponents.passing)
            return
        self._final[place.block] = multiplied(points, self.exponents.end)
        if len(self._final) == self._blocks:
            self._name_points()

    def _name_points(self) -> None:
        """The fingerprints of the own list. BadData: distinct texts have distinct points."""
        final = np.concatenate([points for _, points in sorted(self._final.items())])
        if len(np.unique(final, axis=0)) < len(final):
            raise BadData("some site repeated points of this site's list.")
        for text, point in zip(self._order, final, strict=True):
            if not text.startswith("p"):
                mark = _keyed(self._mark_key, point.tobytes())[:8]
                self._marks[text] = int.from_bytes(mark, "little")

    def _read(self) -> Counts:
        counts = read(np.concatenate(self._total).reshape(-1, COLUMNS))
        if (counts.sites > len(self.sites)).any():
            raise BadData("some site counted an id more than once.")
        return counts

    # --- the end --------------------------------------------------------------------------------

    def news(self, run: str) -> Notice | None:
        """The part of the passes and tally blocks that is done; 0 before their number is known."""
        done = self.rounds / (self._passes + self._tally_blocks) if self._classes else 0.0
        fields = {"portion": round(done, 2)}
        return Notice(
            "progress", run=run, private=True, work=f"aligning ids: {done:.0%}", fields=fields
        )

    @property
    def outcome(self) -> tuple[Outcome, str]:
        """The coordinator reads it, so it has no number. Every site has the canaries too."""
        assert self._counts is not None
        if int((self._counts.sites == len(self.sites)).sum()) == CANARIES:
            return Outcome.NOTHING_SHARED, ""
        return Outcome.CONVERGED, "every site has its list of shared ids"

    def result(self) -> AlignmentResult:
        """The shared ids of this site."""
        assert self._counts is not None
        outcome, reason = self.outcome
        if not outcome.good:
            return AlignmentResult(outcome, reason)
        M = len(self.sites)
        marks = {text[1:]: mark for text, mark in self._marks.items() if text.startswith("i")}
        times = self._counts.of(np.array(list(marks.values()), dtype=np.uint64)).tolist()
        known_to = tuple((k, sum(count >= k for count in times)) for k in range(2, M + 1))
        shared = [text for text, count in zip(marks, times, strict=True) if count == M]
        return AlignmentResult(outcome, reason, ids=tuple(sorted(shared)), known_to=known_to)


def _keyed(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()
