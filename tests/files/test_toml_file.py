"""TOML files: nesting that is refused, and misspelt keys."""

import pytest

from coreg_core.errors import UsageError
from coreg_wire.files.toml_file import read_toml, unknown_key


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "deep.toml"
    deep = ("a = " + "[" * 100_000 + "]" * 100_000, "a" + ".b" * 5_000 + " = 1", "a = " + "{b = " * 40 + "1" + "}" * 40)
    for text in deep:
        path.write_text(text)
        with pytest.raises(UsageError, match="nested too deeply"):
            read_toml(path)
    path.write_text("[a.b.c]\nd = [[{e = 1}]]\n")
    assert read_toml(path) == {"a": {"b": {"c": {"d": [[{"e": 1}]]}}}}


def test_a_misspelt_key_gets_a_suggestion():
    assert unknown_key("tolerence", ["tolerance", "name"]) == "unknown key; did you mean tolerance?"
    assert unknown_key("zzz", ["tolerance"]) == "unknown key"


def test_a_misplaced_key_is_sent_to_its_section():
    known = ["privacy.aggregation", "model.of_run", "name"]
    assert unknown_key("aggregation", known, section="federation") == "this key belongs in the section [privacy]"
    assert unknown_key("name", known, section="federation") == "this key belongs in the top level of the file"
    assert unknown_key("of_run", known, section="model").endswith("(its `objective` decides which keys it has)")
