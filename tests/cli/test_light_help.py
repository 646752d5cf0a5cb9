"""`--help` must not wait for libraries that only a command needs."""

import subprocess
import sys

import pytest

HEAVY = {"grpc", "numpy", "polars", "pydantic", "scipy", "sklearn", "starlette"}
ASK = """
import sys
from {module}.cli.app import app
try:
    app(["--help"])
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("module", ["site_agent", "coordinator"])
def test_help_loads_no_heavy_library(module):
    asked = subprocess.run(
        [sys.executable, "-c", ASK.format(module=module)], capture_output=True, text=True, check=True
    )
    assert "Usage" in asked.stdout
    assert HEAVY & set(asked.stderr.split()) == set()
