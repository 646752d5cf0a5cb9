"""What a machine may lack: its tests are skipped there, and fail where CI has put it
(COREG_EXPECTED).
"""

import os

import pytest


def lacking(*parts, told):
    """End the test: a skip, or a failure if one of the missing parts is expected."""
    if {*parts} & set(os.environ.get("COREG_EXPECTED", "").split()):
        pytest.fail(told)
    pytest.skip(told)
