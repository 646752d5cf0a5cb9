"""The shapes in the signatures are executed: a wrong one fails in the tests, loudly."""

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from coreg_core.agreement.objective import disagreement


def test_the_wrong_number_of_dimensions_fails():
    with pytest.raises(TypeCheckError):
        disagreement(np.zeros(3))


def test_the_wrong_type_of_number_fails():
    with pytest.raises(TypeCheckError):
        disagreement(np.zeros((2, 3), dtype=np.float32))
