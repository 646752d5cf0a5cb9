"""What the docstrings show is what happens."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import coreg_core

PAGES = [
    page
    for page in sorted((Path(__file__).parents[2] / "docs").rglob("*.md"))
    if "\n>>> " in page.read_text()
]
MODULES = sorted(m.name for m in pkgutil.walk_packages(coreg_core.__path__, "coreg_core."))


@pytest.mark.parametrize("name", ["coreg_core", *MODULES])
def test_module(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page(page):
    assert doctest.testfile(str(page), module_relative=False).failed == 0
