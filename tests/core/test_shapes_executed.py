"""The shapes in the signatures are executed: a wrong one fails in the tests, loudly."""

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from coreg_core.agreement.objective import disagreement
from coreg_core.agreement.views import KernelExpansion, make_view
from coreg_core.kernels.bases import EveryPoint
from coreg_core.kernels.functions import Gaussian


def test_the_wrong_number_of_dimensions_fails():
    with pytest.raises(TypeCheckError):
        disagreement(np.zeros(3))


def test_the_wrong_type_of_number_fails():
    with pytest.raises(TypeCheckError):
        disagreement(np.zeros((2, 3), dtype=np.float32))


def test_dimensions_that_differ_under_one_name_fail():
    with pytest.raises(TypeCheckError):
        Gaussian(1.0)(np.zeros((2, 3)), np.zeros((2, 4)))


def test_fields_of_dataclasses_are_checked():
    with pytest.raises(TypeCheckError):
        KernelExpansion(Gaussian(1.0), np.zeros((2, 1)), np.zeros(3))


def test_methods_are_checked():
    view = make_view(EveryPoint(), Gaussian(1.0), np.zeros((1, 1)), np.ones(1), np.zeros((2, 1)), 1.0)
    with pytest.raises(TypeCheckError):
        view.respond(np.zeros((2, 3)), np.zeros(2))
