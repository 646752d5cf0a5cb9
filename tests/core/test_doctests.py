"""What the docstrings show is what happens."""

import doctest
import importlib
import pkgutil

import pytest

import coreg_core

MODULES = sorted(m.name for m in pkgutil.walk_packages(coreg_core.__path__, "coreg_core."))


@pytest.mark.parametrize("name", ["coreg_core", *MODULES])
def test_module(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_estimators_show_an_example():
    for name in ("rlsr", "corlsr"):
        module = importlib.import_module(f"coreg_core.estimators.{name}")
        assert doctest.testmod(module).attempted >= 2
