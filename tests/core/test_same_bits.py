"""coreg_core/arrays.py and both solvers: the same bits whatever BLAS, numpy's vector instructions
and threads do.

As a script: the digest of every state of both solvers.
"""

import hashlib
import math
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal

from coreg_core.agreement.solver import SolverTerms
from coreg_core.agreement.solvers import SOLVER_NAMES, make_solver
from coreg_core.arrays import dot, norms

SHAPES = [(4999, 3, 4), (6, 2, 12), (1, 1, 12)]  # instances, columns, sites


def stepped(name: str, m: int, k: int, M: int) -> bytes:
    """Every state, where site v answers c_v + d_v t, instance by instance."""
    rng = default_rng(0)
    c = rng.random((M, m, k))
    d = rng.random((M, m, 1))
    terms = SolverTerms(
        tuple(0.1 * 3**j for j in range(k)), tuple(rng.random(M)), 1.0, 0.0, 0.0, 45
    )
    solver = make_solver(name, terms)
    told = hashlib.sha256()
    state = solver.start(m)
    while not solver.finished(state):
        query = solver.query(state)
        total = np.zeros((m, k))
        answering = range(M)
        if query.site is not None:
            answering = [query.site]
        for v in answering:
            total += d[v] * query.targets
            if query.part == "affine":
                total += c[v]
        state = solver.step(state, total)
        told.update(
            b"".join(np.ascontiguousarray(value).tobytes() for value in vars(state).values())
        )
    return told.digest()


def digest() -> str:
    return hashlib.sha256(
        b"".join(stepped(name, *shape) for name in SOLVER_NAMES for shape in SHAPES)
    ).hexdigest()


FOUND = " ".join(
    np.show_config(mode="dicts")["SIMD Extensions"].get("found", ())
)  # beyond numpy's baseline
MACHINES = [
    *(
        {"OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "2"}
        for core in ("Haswell", "SkylakeX", "Zen", "Prescott")
    ),
    {"NPY_DISABLE_CPU_FEATURES": FOUND},
]


@pytest.fixture(scope="module")
def here() -> str:
    return digest()


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: next(iter(machine.values())))
def test_every_processor_steps_both_solvers_to_the_same_bits(
    machine: dict[str, str], here: str
) -> None:
    done = subprocess.run(
        [sys.executable, __file__],
        env=os.environ | machine,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == -signal.SIGILL:
        pytest.skip("this processor lacks the instructions")
    assert done.stdout.split() == [here], done.stderr


@pytest.mark.parametrize("n", [0, 1, 2, 3, 1000, 4097])
def test_products_and_norms_are_those_of_exact_sums_in_either_order_of_memory(n: int) -> None:
    a, b = default_rng(n).normal(size=(2, n, 3))
    off = 16 * 2.0**-53  # one rounding for each halving, and those of the products and the root
    for j in range(3):
        sizes = math.fsum(abs(a[:, j] * b[:, j]))
        assert abs(dot(a[:, j], b[:, j]) - math.fsum(a[:, j] * b[:, j])) <= off * sizes
    assert_allclose(norms(a), [math.hypot(*column) for column in a.T], rtol=off)
    assert_array_equal(norms(a), norms(np.asfortranarray(a)))
    assert_array_equal(norms(a), [math.sqrt(dot(column, column)) for column in a.T])


if __name__ == "__main__":
    sys.stdout.write(digest())
