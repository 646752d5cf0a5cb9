"""What every test needs: shapes that are executed, and hypothesis without surprises in CI.

The import hook has to be in place before anything imports `coreg_core`, so it stands at the top of
the first file that pytest (and each of pytest-xdist's workers) reads.
"""

import os

# Two workers with two BLAS threads each on two cores mostly wait for one another. Set before numpy
# is there, and inherited by pytest-xdist's workers.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests start hundreds of processes, and each would compile the packages anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from hypothesis import HealthCheck, settings
from jaxtyping import config, install_import_hook

install_import_hook("coreg_core", "executed_types.check")
# Shapes are executed where the mathematics is tested. Elsewhere, and in tests of many rounds, they
# would double the time.
MANY_ROUNDS = {
    "test_certificates.py",
    "test_golden.py",
    "test_solvers.py",
    "test_scikit_learn_checks.py",
}


def pytest_runtest_setup(item):
    config.update(
        "jaxtyping_disable", item.path.parent.name != "core" or item.path.name in MANY_ROUNDS
    )


# A shared or loaded machine is slow without anything being wrong, so there are no deadlines; and no
# example database, whose files two workers would write at once. In CI the examples are the same on
# every run.
_quiet = {
    "deadline": None,
    "database": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("local", max_examples=30, **_quiet)
settings.register_profile("ci", max_examples=30, derandomize=True, **_quiet)
settings.register_profile("thorough", max_examples=2000, **_quiet)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "local")
)
