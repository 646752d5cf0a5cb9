"""TOML files: nesting that is refused, and misspelt keys."""

import pytest

from coreg_core.errors import UsageError
from coreg_wire.files.toml_file import read_toml


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "deep.toml"
    deep = ("a = " + "[" * 100_000 + "]" * 100_000, "a" + ".b" * 5_000 + " = 1", "a = " + "{b = " * 40 + "1" + "}" * 40)
    for text in deep:
        path.write_text(text)
        with pytest.raises(UsageError, match="nested too deeply"):
            read_toml(path)
    path.write_text("[a.b.c]\nd = [[{e = 1}]]\n")
    assert read_toml(path) == {"a": {"b": {"c": {"d": [[{"e": 1}]]}}}}
