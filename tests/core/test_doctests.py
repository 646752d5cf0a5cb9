"""What the docstrings show is what happens."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import coreg_core

PAGES = [page for page in sorted((Path(__file__).parents[2] / "docs").rglob("*.md")) if "\n>>> " in page.read_text()]
MODULES = sorted(m.name for m in pkgutil.walk_packages(coreg_core.__path__, "coreg_core."))


@pytest.mark.parametrize("name", ["coreg_core", *MODULES])
def test_module(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page):
    assert doctest.testfile(str(page), module_relative=False).failed == 0


def test_the_estimators_show_an_example():
    for name in ("rlsr", "corlsr"):
        module = importlib.import_module(f"coreg_core.estimators.{name}")
        assert doctest.testmod(module).attempted >= 2
