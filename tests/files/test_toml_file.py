"""TOML files: nesting that is refused, and every renamed key with its new name."""

import re

import pytest

from coordinator.config.federation_toml import read_configuration
from coordinator.config.study_toml import read_study
from coreg_core.errors import UsageError
from coreg_wire.files.toml_file import RENAMED, read_toml, unknown_key
from site_agent.config.settings import read_settings
from site_agent.policy.policy import read_policy

FEDERATION = '[federation]\nname = "x"\nsites = ["a", "b", "c"]\n'


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path):
    path = tmp_path / "deep.toml"
    deep = ("a = " + "[" * 100_000 + "]" * 100_000, "a" + ".b" * 5_000 + " = 1", "a = " + "{b = " * 40 + "1" + "}" * 40)
    for text in deep:
        path.write_text(text)
        with pytest.raises(UsageError, match="nested too deeply"):
            read_toml(path)
    path.write_text("[a.b.c]\nd = [[{e = 1}]]\n")
    assert read_toml(path) == {"a": {"b": {"c": {"d": [[{"e": 1}]]}}}}


@pytest.mark.parametrize(
    ("read", "text", "key"),
    [
        (read_configuration, f'{FEDERATION}on_lost = "wait"', "on_lost"),
        (read_configuration, f"{FEDERATION}most_returns = 3", "most_returns"),
        (read_configuration, f"{FEDERATION}[service]\nmost_runs = 3", "most_runs"),
        (read_configuration, f"{FEDERATION}[timeouts]\nleast_bandwidth = 1e6", "least_bandwidth"),
        (read_configuration, f'{FEDERATION}[privacy]\nanswers = "sums"', "answers"),
        (read_study, '[study]\nname = "s"\n[model]\nobjective = "scoring"\nlacking = "mean"', "lacking"),
        (lambda path: read_settings(path, {}), "patience = 3", "patience"),
        (lambda path: read_settings(path, {}), "keep = 3", "keep"),
        (read_policy, "runs_a_day = 3", "runs_a_day"),
        (read_policy, "most_questions = 3", "most_questions"),
    ],
)
def test_a_key_of_an_earlier_release_gets_an_error_with_its_new_name(tmp_path, read, text, key):
    (tmp_path / "old.toml").write_text(text + "\n")
    with pytest.raises(UsageError, match=re.escape(f"{key}: unknown key; it is now {RENAMED[key]}")):
        read(tmp_path / "old.toml")


def test_a_misspelt_key_gets_a_suggestion():
    assert unknown_key("tolerence", ["tolerance", "name"]) == "unknown key; did you mean tolerance?"
    assert unknown_key("zzz", ["tolerance"]) == "unknown key"
