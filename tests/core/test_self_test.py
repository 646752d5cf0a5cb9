"""coreg_core/numerics/self_test.py: one digest whatever the BLAS does, and another where an operation rounds otherwise."""

import os
import subprocess
import sys

import pytest

from coreg_core.numerics import self_test


@pytest.mark.parametrize("core", ["Prescott", "Nehalem", "Haswell"])
def test_other_vector_instructions_and_threads_make_the_same_digest(core: str) -> None:
    program = "from coreg_core.numerics.self_test import machine_digest; print(machine_digest())"
    given = {**os.environ, "OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == [self_test.machine_digest()]


@pytest.mark.parametrize("name", ["tree_sum", "column_norms", "inner", "outer", "householder", "solve_upper"])
def test_one_bit_of_any_operation_makes_another_digest(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    honest = getattr(self_test, name)

    def off(*given: object) -> object:
        found = honest(*given)
        first, *rest = found if isinstance(found, tuple) else (found,)
        changed = first * (1.0 + 2.0**-52)
        return (changed, *rest) if rest else changed

    monkeypatch.setattr(self_test, name, off)
    assert self_test.machine_digest.__wrapped__() != self_test.machine_digest()
