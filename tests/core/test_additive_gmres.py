"""Block GMRES over sums: to the dense solution, in the memory that it was granted."""

import numpy as np
import pytest
from additive_problems import Algebra, algebras, random_view
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from coreg_core.additive.model.view import Hyper
from coreg_core.additive.question_types import Answer, Column, Operator, probe_signs
from coreg_core.additive.reference.closed_form import solve_dense
from coreg_core.additive.solver.basis_memory import LEAST_RESTART, basis_bytes, memory_for
from coreg_core.additive.solver.block_gmres import BlockGmres, Space
from coreg_core.additive.solver.lockstep import Lockstep
from coreg_core.agreement.schedules.schedule import Stop
from coreg_core.errors import UsageError


def columns(k):
    return (Column(), *(Column("probe", p) for p in range(k - 1)))


def stiff(seed=0, n=12, m=40, sites=3, noise=1e-2):
    """Little noise: T's spectral radius is in the hundreds."""
    rng = np.random.default_rng(seed)
    views = [random_view(rng, n, m) for _ in range(sites)]
    return Algebra(views, [Hyper(noise, 1.0)] * sites, 1.0)


def right_sides(problem, probes):
    return [np.c_[view.y, probe_signs(view.n_labelled, probes, (1, v))] for v, view in enumerate(problem.views)]


def check(problem, state, labels=None, atol=1e-8):
    dense = solve_dense(problem.views, problem.hypers, problem.intercept_prior)
    m = problem.n_unlabelled
    assert_allclose(state.x[:m, 0], problem.score(dense.w), atol=atol)
    assert state.x[-1, 0] == pytest.approx(dense.intercept, abs=atol)


@settings(max_examples=40)
@given(algebras(), st.integers(1, 5))
def test_messages_alone_give_the_dense_solution(problem, k):
    labels = right_sides(problem, k - 1)
    solver = BlockGmres(columns(k), (1e-12,) * k, problem.intercept_prior)
    state = problem.solve(solver, labels)
    # 1e-12 of ‖T(0)‖ or as far as rounding lets it; T(0) is at most some hundred times the labels.
    assert solver.stop(state) in (Stop.CONVERGED, Stop.STAGNATED)
    check(problem, state)
    n_labels = sum(view.n_labelled for view in problem.views)
    # A minimal polynomial of degree 2N + 1 at most, an affine question, and a verification (two where rounding asks).
    assert state.round <= 2 * n_labels + 1 + 5


def test_a_block_takes_fewer_rounds_than_a_column():
    problem = stiff()
    one = problem.solve(BlockGmres(columns(1), (1e-6,)))
    block = problem.solve(BlockGmres(columns(9), (1e-6,) * 9), right_sides(problem, 8))
    check(problem, one, atol=1e-3)
    check(problem, block, atol=1e-3)
    assert block.round < 0.7 * one.round


def test_a_restarted_basis_still_ends_and_says_when_it_does_not():
    problem = stiff(noise=0.3)
    labels = right_sides(problem, 4)
    short = problem.solve(BlockGmres(columns(5), (1e-9,) * 5, restart=3), labels)
    check(problem, short, atol=1e-6)
    whole = problem.solve(BlockGmres(columns(5), (1e-9,) * 5), labels)
    assert short.round >= whole.round
    solver = BlockGmres(columns(5), (1e-9,) * 5, max_rounds=3)
    stopped = problem.solve(solver, labels)
    assert solver.stop(stopped) is Stop.MAX_ROUNDS
    assert stopped.round == 3
    unverified = problem.solve(BlockGmres(columns(5), (1e-9,) * 5, restart=3, verify=False), labels)
    check(problem, unverified, atol=1e-6)


def test_what_arithmetic_cannot_give_is_stagnation():
    problem = stiff(noise=1e-3)
    solver = BlockGmres(columns(2), (1e-30,) * 2)
    state = problem.solve(solver, right_sides(problem, 1))
    assert solver.stop(state) is Stop.STAGNATED
    check(problem, state, atol=1e-6)


def test_columns_that_say_the_same_leave_the_block():
    problem = stiff()
    labels = [np.tile(view.y[:, None], (1, 4)) for view in problem.views]
    solver = BlockGmres(columns(4), (1e-8,) * 4)
    state = problem.solve(solver, labels)
    assert {block.shape[1] for block in state.basis} <= {0, 1, 2}  # one, in its two parts
    assert_allclose(state.x[:, 3], state.x[:, 0], rtol=1e-9)
    check(problem, state, atol=1e-4)


def test_nothing_to_learn_is_no_question():
    problem = stiff()
    state = problem.solve(BlockGmres(columns(1), (1e-5,)), [np.zeros((view.n_labelled, 1)) for view in problem.views])
    assert state.round == 1
    assert not state.x.any()


def test_a_recycled_space_saves_rounds_and_changes_no_solution():
    problem = stiff(n=15, m=60, sites=10)
    labels = right_sides(problem, 3)
    first = BlockGmres(columns(4), (1e-3,) * 4, verify=False)
    before = problem.solve(first, labels)
    tuned = Algebra(problem.views, [hyper.times(0.8, 1.3) for hyper in problem.hypers], 1.0)
    solver = BlockGmres(columns(4), (1e-6,) * 4)
    warm = {"x": before.x, "scale": before.scale}
    plain = tuned.solve(solver, labels, **warm)
    recycled = tuned.solve(solver, labels, **warm, space=first.space(before))
    check(tuned, plain, atol=1e-3)
    check(tuned, recycled, atol=1e-3)
    assert recycled.round < 0.8 * plain.round


def test_parts_that_go_apart_save_rounds_and_change_no_solution():
    problem = stiff(n=15, m=60, sites=10)
    labels = right_sides(problem, 4)
    together = problem.solve(BlockGmres(columns(5), (1e-8,) * 5, parted=False), labels)
    apart = problem.solve(BlockGmres(columns(5), (1e-8,) * 5), labels)
    check(problem, together, atol=1e-4)
    check(problem, apart, atol=1e-4)
    assert apart.round < 0.85 * together.round


def test_a_space_stands_behind_a_newer_one_and_room_is_kept():
    rng = np.random.default_rng(0)
    A = np.eye(30) + 0.3 * rng.normal(size=(30, 30)) / np.sqrt(30)

    def space_of(directions):
        C, R = np.linalg.qr(A @ directions)
        return Space(directions @ np.linalg.inv(R), C)

    shared = rng.normal(size=(30, 4))
    older = space_of(np.concatenate([shared, rng.normal(size=(30, 5))], axis=1))
    newer = space_of(np.concatenate([shared, rng.normal(size=(30, 3))], axis=1))
    both = newer.behind(older, 100)
    assert newer.C.shape[1] < both.C.shape[1] <= 7 + 5  # what both have is not kept twice
    assert_allclose(A @ both.U, both.C, atol=1e-10)
    assert_allclose(both.C.T @ both.C, np.eye(both.C.shape[1]), atol=1e-10)
    assert newer.behind(older, 9).C.shape[1] == 9
    assert newer.behind(older, 7) is newer
    assert newer.behind(Space(np.zeros((30, 0)), np.zeros((30, 0))), 100) is newer


def test_the_recycled_space_is_what_the_operator_did():
    problem = stiff()
    solver = BlockGmres(columns(4), (1e-6,) * 4, verify=False)
    state = problem.solve(solver, right_sides(problem, 3))
    space = solver.space(state)
    question = solver.query(solver.start(40))
    U = space.U
    linear = problem.answer(
        type(question)(question.ask, U, columns(1) * U.shape[1], "linear")
    ).vectors  # a is times c = 1
    assert_allclose(U - linear, space.C, atol=1e-7)
    assert_allclose(space.C.T @ space.C, np.eye(U.shape[1]), atol=1e-10)


def test_memory_is_stated_and_held():
    # The figures of docs/research/mathematics.md: 60 rounds of 17 columns.
    assert basis_bytes(10**4, 17, 59) == pytest.approx(0.163e9, rel=0.01)
    assert basis_bytes(10**6, 17, 59) == pytest.approx(16.3e9, rel=0.01)
    comfortable = memory_for(10**4, 17, 2**30)
    assert comfortable.recycle
    assert basis_bytes(10**4, 17, comfortable.restart, recycle=True) <= 2**30
    tight = memory_for(10**5, 17, 2**29)
    assert not tight.recycle
    assert basis_bytes(10**5, 17, tight.restart) <= 2**29
    with pytest.raises(UsageError, match="GiB for 8 rounds"):
        memory_for(10**6, 17, 2**30)
    assert memory_for(10**6, 17, basis_bytes(10**6, 17, LEAST_RESTART)).restart == LEAST_RESTART


def test_a_state_shares_the_blocks_of_the_one_before():
    """A hundred states of a solve take the memory of one, and none changes what a state before it has."""
    problem = stiff()
    solver = BlockGmres(columns(3), (1e-9,) * 3)
    labels = right_sides(problem, 2)
    state, before = solver.start(40), list[np.ndarray]()
    for _ in range(4):
        after = solver.step_with(state, problem.answer(solver.query(state), labels))
        assert all(a is b for a, b in zip(state.basis, after.basis, strict=False))
        assert all(a.tobytes() == b.tobytes() for a, b in zip(before, after.basis, strict=False))
        state, before = after, [block.copy() for block in after.basis]
    assert len(state.basis) > 1


def test_members_of_a_lockstep_share_rounds_and_no_space():
    problem = stiff()
    halves = [Algebra(problem.views, [h.times(noise, 1.0) for h in problem.hypers], 1.0) for noise in (1.0, 4.0, 0.25)]
    members = tuple(
        BlockGmres((Column(operator=Operator(noise=noise)),), (1e-8,), verify=False) for noise in (1.0, 4.0, 0.25)
    )
    together = Lockstep(members)
    states, rounds = together.start(40), 0
    while not together.finished(states):
        question, parts = together.query(states), []
        for j, column in enumerate(question.columns):
            half = halves[[1.0, 4.0, 0.25].index(column.operator.noise)]
            parts.append(half.answer(type(question)(question.ask, question.targets[:, j : j + 1], (), question.part)))
        total = Answer(np.concatenate([p.vectors for p in parts], axis=1), np.zeros(0))
        states, rounds = together.step_with(states, total), rounds + 1
    alone = [half.solve(member) for half, member in zip(halves, members, strict=True)]
    assert rounds == max(state.round for state in alone)
    for state, expected in zip(states, alone, strict=True):  # (BLAS rounds a column of three otherwise than one)
        assert_allclose(state.x, expected.x, rtol=1e-7, atol=1e-7)
    first = members[1].start(40)
    running = (members[0].start(40), members[1].step_with(first, halves[1].answer(members[1].query(first))))
    with pytest.raises(UsageError, match="start them together"):
        Lockstep(members[:2]).query(running)
