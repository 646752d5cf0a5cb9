r"""Block GMRES at the coordinator: x = T(x) for several columns at once, over sums of answers, one parallel round a
step.

    (I − T_lin)(x − x₀) = T(x₀) − x₀ = r₀            all columns share the space  K = span{r₀, A r₀, A² r₀, …},  A = I − T_lin

Iterating T would diverge (its spectral radius is 450 to 800); I − T_lin is nonsingular and has at most 2N + 1
eigenvalues off 1, N all labels, so Krylov spaces are small, and a block of 17 shares one (31 → 6 rounds against single
columns; design, 7.2). The first question is affine, at x₀: the one in which labels appear. Then linear ones at the
blocks of an orthonormal basis, each column scaled to ‖·‖∞ = 1 before it is sent. Arnoldi's relation A Q_j = Q_{j+1} H
holds, so only the basis and H of all answers are kept.

A tuning step changes A a little. The last solve's space is *recycled*: with A_old U = C, CᵀC = I, the next solve's
directions are

    M⁻¹q = U Cᵀq + (I − CCᵀ)q        (right preconditioning: A M⁻¹ is the identity on C where A has not changed)

and the part of the space before it that this space lacks follows behind it. For four times the memory, cpu_act at 200 labels
a site takes 47 rounds instead of 61 with the last solve's space alone.

A residual's s and q parts begin as directions of their own. The answers to each are then known apart, at twice the
numbers a round (sarcos, 50 labels at each of three sites: 46 rounds for a tuned model instead of 65).

Departures from the textbook: columns whose new direction is rounding leave the block (deflation); with ``verify`` the
true residual is asked at the end, T(x₀) + T_lin(x − x₀) − x, and where it disagrees the space starts anew from x, as it
does when the basis is as long as memory allows. Every site of a federation takes these steps, so nothing here depends on
a machine (`coreg_core.numerics.reproducible`). A state is arrays and numbers; its basis is a tuple of blocks that later
states share.
"""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.question_types import Answer, Ask, Column, Question
from coreg_core.agreement.schedules.schedule import Stop, normalised
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.reproducible import (
    column_norms,
    householder,
    inner,
    orthonormal,
    outer,
    solve_upper,
    well_apart,
)

# A direction that keeps less than this of the longest of its block after orthogonalisation is rounding of the others.
_DEFLATE = 1e-13
ROUGH, TWICE = 1, 2  # slices of a product: a preconditioner must only be the same everywhere; used twice
_KEEP = 0.3  # of the length of a direction: with less, the newer space has it
_SOUND = 1e-10
# Two cycles in a row without halving the verified residual: no further progress is possible.
_STRIKES = 2


@dataclass(frozen=True, eq=False)
class Space:
    """A_old U = C with orthonormal C: kept from the last solve for the next."""

    U: Float64[Arr, "r n"]
    C: Float64[Arr, "r n"]

    def direction(self, q: Float64[Arr, "r k"]) -> Float64[Arr, "r k"]:
        """M⁻¹ q."""
        if not self.C.shape[1]:
            return q
        c = inner(self.C, q, ROUGH)
        out: Arr = q - outer(self.C, c, ROUGH) + outer(self.U, c, ROUGH)
        return out

    def behind(self, older: "Space", most: int) -> "Space":
        """This space, and what C lacks of the older one: at most so many columns.

        C_old − C CᵀC_old = Q R makes A_old (U_old − U CᵀC_old) R⁻¹ = Q, except for the change of A in between, which a
        preconditioner can ignore. Directions that keep less than `_KEEP` of their length are in C already.
        """
        room = most - self.C.shape[1]
        if room <= 0 or not older.C.shape[1]:
            return self
        shared = inner(self.C, older.C)
        lacking = older.C - outer(self.C, shared)
        kept = well_apart(inner(lacking, lacking), _KEEP)[:room]
        if not kept:
            return self
        Q, R = orthonormal(lacking[:, kept], 0.0)
        U = outer((older.U - outer(self.U, shared))[:, kept], solve_upper(R, np.eye(len(R))))
        return Space(np.concatenate([self.U, U], axis=1), np.concatenate([self.C, Q], axis=1))


class Next(IntEnum):
    """Kinds of the next question."""

    AFFINE = 0
    DIRECTION = 1
    VERIFY = 2
    DONE = 3


@dataclass(frozen=True, eq=False)
class GmresState:
    """The space so far. ``basis`` has a block a round.

    Arnoldi's matrix H is kept as its factors: ``triangle`` is R of H = QR, and ``turns`` what Q is a product of, each an
    orthogonal matrix on the rows from one block's first to the last of its round. ``right`` is Qᵀ of what r₀ is in the basis.
    """

    round: int
    ask: int
    stop: int  # 0 while running, then 1 + the position in `STOPS`
    strikes: int
    anchor: Float64[Arr, "r k"]  # where the affine question was asked
    affine: Float64[Arr, "r k"]  # T(anchor)
    start: Float64[Arr, "r k"]  # where this cycle began
    x: Float64[Arr, "r k"]
    scale: Float64[Arr, " k"]  # what residuals are relative to
    rho: Float64[Arr, "r k"]  # T(x) − x where it was last true: at the start of a cycle, and after VERIFY
    residual: Float64[Arr, " k"]  # ‖T(x) − x‖₂, from the recursion or, after VERIFY, true
    verified: Float64[Arr, " k"]  # the last true one
    triangle: Float64[Arr, "p p"]
    turns: tuple[tuple[int, Arr], ...]
    right: Float64[Arr, "q k"]
    U: Float64[Arr, "r n"]  # the recycled space; no columns where there is none
    C: Float64[Arr, "r n"]
    basis: tuple[Arr, ...]
    directions: tuple[Arr, ...]  # the columns of the question: the basis itself, or M⁻¹ times it


STOPS = (Stop.CONVERGED, Stop.STAGNATED, Stop.MAX_ROUNDS)


def direction_columns(columns: tuple[Column, ...], width: int) -> tuple[Column, ...]:
    """The names of a block of directions: columns of one operator, each at most twice, because s and q travel apart."""
    return (columns * 2)[:width]


@dataclass(frozen=True)
class BlockGmres:
    """Solves x = T(x) for ``columns``, which share one operator. A value stepped from outside, like the schedules of `rounds`.

    Parameters
    ----------
    columns
        the solutions.
    tolerance
        of each column, relative to its scale: ‖T(x) − x‖₂ ≤ tolerance · ‖T(0)‖₂.
    intercept_prior
        c, by which the sum of the 1ᵀα becomes the last row of T(x).
    max_rounds
        questions in total.
    restart
        most blocks of a basis.
    verify
        ask the true residual before it is done.
    step
        tuning steps made, which determine the sites' noise and prior.
    scalars
        sent with the affine question.
    parted
        begin with s and q of each residual apart: twice the columns in two thirds of the rounds.
    """

    columns: tuple[Column, ...]
    tolerance: tuple[float, ...]
    intercept_prior: float = 1.0
    max_rounds: int = 200
    restart: int = 100
    verify: bool = True
    step: int = 0
    scalars: tuple[float, ...] = ()
    parted: bool = True

    @property
    def width(self) -> int:
        """The most columns of a question."""
        return len(self.columns) * (1 + self.parted)

    def start(
        self,
        n_unlabelled: int,
        x: Float64[Arr, "r k"] | None = None,
        scale: Float64[Arr, " k"] | None = None,
        space: Space | None = None,
    ) -> GmresState:
        """From x = 0, or warm, with the scale of an earlier solve (‖T(0)‖ is unknown at x ≠ 0) and its space."""
        k = len(self.columns)
        zero = np.zeros((2 * n_unlabelled + 1, k))
        x = zero if x is None else x
        none = np.zeros(k)
        return GmresState(
            round=0,
            ask=Next.AFFINE,
            stop=0,
            strikes=0,
            anchor=x,
            affine=zero,
            start=x,
            x=x,
            scale=none if scale is None else scale,
            rho=zero,
            residual=np.full(k, np.inf),
            verified=np.full(k, np.inf),
            triangle=np.zeros((0, 0)),
            turns=(),
            right=np.zeros((0, k)),
            U=np.zeros((len(zero), 0)) if space is None else space.U,
            C=np.zeros((len(zero), 0)) if space is None else space.C,
            basis=(),
            directions=(),
        )

    def query(self, state: GmresState) -> Question:
        """The affine question first; then the newest block of the basis; x − x₀ when the true residual is due."""
        match Next(state.ask):
            case Next.AFFINE:
                return Question(Ask.FIXED_POINT, state.anchor, self.columns, "affine", self.step, self.scalars)
            case Next.DIRECTION:
                targets = normalised(state.directions[-1])[0]
                # Directions belong to the operator, not to a right-hand side: a deflated block names fewer columns.
                columns = direction_columns(self.columns, targets.shape[1])
                return Question(Ask.FIXED_POINT, targets, columns, "linear", self.step)
            case Next.VERIFY | Next.DONE:
                targets = normalised(state.x - state.anchor)[0]
                return Question(Ask.FIXED_POINT, targets, self.columns, "linear", self.step)

    def step_with(self, state: GmresState, answer: Answer) -> GmresState:
        """One round."""
        total = answer.vectors.copy()
        total[-1] *= self.intercept_prior
        state = replace(state, round=state.round + 1)
        match Next(state.ask):
            case Next.AFFINE:
                scale = state.scale if state.scale.any() else column_norms(total)
                state = replace(state, affine=total, scale=np.where(scale > 0.0, scale, 1.0))
                return self._cycle(state, total - state.anchor)
            case Next.DIRECTION:
                return self._extend(state, total * normalised(state.directions[-1])[1])
            case Next.VERIFY | Next.DONE:
                return self._judge(state, total * normalised(state.x - state.anchor)[1])

    def finished(self, state: GmresState) -> bool:
        """It has stopped."""
        return Next(state.ask) is Next.DONE

    def space(self, state: GmresState) -> Space:
        """The space for the next solve: A M⁻¹Q_j = Q_{j+1}H with H = QR gives A (M⁻¹Q_j R⁻¹) = Q_{j+1}Q.

        Behind it follows the rest of the previous space, as far as a basis of `restart` rounds has room. Otherwise a solve
        that an old space made short would lose that space (13 and 7 rounds in turn).
        """
        given, size = Space(state.U, state.C), len(state.triangle)
        diagonal = np.abs(state.triangle.diagonal())
        # A direction that A all but annihilates leaves no divisor, and ends the space.
        weak = np.flatnonzero(diagonal <= _SOUND * diagonal.max(initial=0.0))
        sound = int(weak[0]) if len(weak) else size
        if not sound:
            return given
        known = np.concatenate(state.basis, axis=1)
        Q = np.eye(known.shape[1], sound)
        for at, turn in reversed(state.turns):
            rows = slice(at, at + len(turn))
            Q[rows] = outer(turn, Q[rows])
        asked = np.concatenate(state.directions, axis=1)[:, :sound]
        R = state.triangle[:sound, :sound]
        space = Space(outer(asked, solve_upper(R, np.eye(sound))), outer(known, Q))
        return space.behind(given, self.restart * self.width)

    def stop(self, state: GmresState) -> Stop | None:
        """How it ended."""
        return STOPS[state.stop - 1] if state.stop else None

    # --- the parts of a step ------------------------------------------------------------------------------------------

    def _met(self, state: GmresState, residual: Arr) -> bool:
        return bool((residual <= np.array(self.tolerance) * state.scale).all())

    def _cycle(self, state: GmresState, residual: Float64[Arr, "r k"]) -> GmresState:
        # A new space from a known residual. Columns are brought to one scale first: deflation compares their lengths.
        norms = column_norms(residual)
        state = replace(state, start=state.x, rho=residual, residual=norms, basis=(), directions=(), turns=())
        state = replace(state, triangle=np.zeros((0, 0)), right=np.zeros((0, len(norms))))
        if self._met(state, norms):
            return self._end(state)
        if state.round >= self.max_rounds:
            return replace(state, ask=int(Next.DONE), stop=1 + STOPS.index(Stop.MAX_ROUNDS))
        block, R = self._first_block(residual / state.scale)
        first = Space(state.U, state.C).direction(block)
        return replace(state, ask=int(Next.DIRECTION), basis=(block,), directions=(first,), right=R * state.scale)

    def _first_block(self, residual: Float64[Arr, "r k"]) -> tuple[Arr, Arr]:
        if not self.parted:
            return self._block(residual)
        m, k = len(residual) // 2, residual.shape[1]
        parts = np.zeros((len(residual), 2 * k))
        parts[:m, :k], parts[m:, k:] = residual[:m], residual[m:]
        block, R = self._block(parts)
        return block, R[:, :k] + R[:, k:]

    @staticmethod
    def _block(W: Arr, longest: float = 0.0) -> tuple[Arr, Arr]:
        return orthonormal(W, _DEFLATE * max(longest, float(column_norms(W).max(initial=0.0))))

    def _extend(self, state: GmresState, linear: Float64[Arr, "r k"]) -> GmresState:
        newest = state.directions[-1]
        W = newest - linear
        longest = float(column_norms(W).max())
        known = np.concatenate(state.basis, axis=1)
        column = np.zeros((known.shape[1], W.shape[1]))
        for _ in range(2):  # the second pass removes the rest of the first, from its two slices or where A is nearly I
            h = inner(known, W, TWICE)
            column += h
            W = W - outer(known, h)
        block, R = self._block(W, longest)
        state = self._factored(state, np.concatenate([column, R]))
        residual = column_norms(state.right[len(state.triangle) :])
        full = len(state.directions) >= self.restart
        spare = 1 if self.verify else 0
        ends = block.shape[1] == 0 or full or state.round + spare >= self.max_rounds
        state = replace(state, residual=residual, basis=(*state.basis, block))
        if self._met(state, residual) or ends:
            y = solve_upper(state.triangle, state.right[: len(state.triangle)])
            x = state.start + outer(np.concatenate(state.directions, axis=1), y)
            return self._end(replace(state, x=x))
        another = Space(state.U, state.C).direction(block)
        return replace(state, ask=int(Next.DIRECTION), directions=(*state.directions, another))

    @staticmethod
    def _factored(state: GmresState, column: Float64[Arr, "rows w"]) -> GmresState:
        """With one block column more of Arnoldi's matrix: the turns so far, and one that makes the rest of it triangular."""
        done, width = len(state.triangle), column.shape[1]
        for at, turn in state.turns:
            rows = slice(at, at + len(turn))
            column[rows] = inner(turn, column[rows])
        turn, R = householder(column[done:])
        triangle = np.zeros((done + width, done + width))
        triangle[:done, :done] = state.triangle
        triangle[:done, done:] = column[:done]
        triangle[done:, done:] = R[:width]
        right = np.zeros((len(column), state.right.shape[1]))
        right[: len(state.right)] = state.right
        right[done:] = inner(turn, right[done:])
        return replace(state, triangle=triangle, turns=(*state.turns, (done, turn)), right=right)

    def _end(self, state: GmresState) -> GmresState:
        # Without verification the recursion counts. At a cold start x₀ = 0 there is nothing to verify before the first step.
        met = self._met(state, state.residual)
        if self.verify and state.round < self.max_rounds and (state.x - state.anchor).any():
            return replace(state, ask=int(Next.VERIFY))
        if met or state.round >= self.max_rounds or self.verify:
            stop = Stop.CONVERGED if met else Stop.MAX_ROUNDS
            return replace(state, ask=int(Next.DONE), stop=1 + STOPS.index(stop))
        return replace(state, ask=int(Next.VERIFY))  # memory ended the cycle: the next one begins at the true residual

    def _judge(self, state: GmresState, linear: Float64[Arr, "r k"]) -> GmresState:
        true = state.affine + linear - state.x
        norms = column_norms(true)
        wanted = np.isfinite(self.tolerance)
        target = (np.array(self.tolerance) * state.scale)[wanted]
        worst, before = float((norms[wanted] / target).max()), float((state.verified[wanted] / target).max())
        strikes = state.strikes + 1 if worst > 0.5 * before else 0
        state = replace(state, rho=true, residual=norms, verified=norms, strikes=strikes)
        stop = Stop.CONVERGED if self._met(state, norms) else None
        if stop is None and strikes >= _STRIKES:
            stop = Stop.STAGNATED
        if stop is None and state.round + 2 > self.max_rounds:
            stop = Stop.MAX_ROUNDS
        if stop is not None:
            return replace(state, ask=int(Next.DONE), stop=1 + STOPS.index(stop))
        return self._cycle(state, true)
