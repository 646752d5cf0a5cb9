"""federation.toml: names that survive the wire, sums that are possible, and the samples that we ship."""

import re
from pathlib import Path

import pytest

from coordinator.config.federation_toml import read_configuration
from coordinator.config.sample import SAMPLE
from coreg_core.errors import UsageError
from coreg_core.protocol.plan import Agreement, Iteration, Membership, Plan, Privacy
from coreg_wire.transport.fields import fill, read
from coreg_wire.v1 import federation_pb2 as pb
from site_agent.config.settings import read_settings
from site_agent.policy.policy import Policy, read_policy

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def configuration(folder, text, name="x", sites='["a", "b", "c"]'):
    path = folder / "federation.toml"
    path.write_text(f'[federation]\nname = "{name}"\nsites = {sites}\n{text}', encoding="utf-8")
    return read_configuration(path)


@pytest.mark.parametrize("name", ["a\\tb", "a\\u001b[2J", "a\\u200bb", "   ", "", "x" * 201])
def test_a_federations_name_is_one_line_that_can_be_read(tmp_path, name):
    """A character that cannot be printed is replaced on the wire: every site would see another plan than was digested."""
    with pytest.raises(UsageError, match=r"federation\.name = .*1 to 200 printable characters"):
        configuration(tmp_path, "", name)


@pytest.mark.parametrize("name", ["my federation", "Föderation «Süd» 2026", "x" * 200])
def test_a_plan_keeps_its_digest_on_the_wire(tmp_path, name):
    plan, message = configuration(tmp_path, "", name).plan(), pb.Plan()
    fill(message, plan)
    again = read(Plan, message)
    assert (again, again.digest) == (plan, plan.digest)


@pytest.mark.parametrize(
    ("sites", "text", "words"),
    [
        ('["a"]', "", "sealed sums need 2 sites at least"),
        ('["a", "b", "c"]', "min_sites = 1\n", "sealed sums need 2 sites at least"),
        (str([f"s{i:02}" for i in range(65)]), "", "sealed sums have at most 64 sites"),
    ],
)
def test_a_plan_that_sums_cannot_serve_is_refused_with_what_to_do(tmp_path, sites, text, words):
    with pytest.raises(UsageError, match=f'{words}.*aggregation = "plaintext"'):
        configuration(tmp_path, f'{text}[privacy]\naggregation = "secure"\n', sites=sites)
    plain = configuration(tmp_path, f'{text}[privacy]\naggregation = "plaintext"\n', sites=sites)
    assert not plain.plan().masked


def test_the_sample_files_show_the_defaults_and_are_read(tmp_path):
    (tmp_path / "federation.toml").write_text(SAMPLE)
    plan = read_configuration(tmp_path / "federation.toml").plan()
    assert plan.membership == Membership(("site-a", "site-b", "site-c"), 3)
    assert (plan.objective, plan.iteration, plan.privacy) == (Agreement(), Iteration(), Privacy("secure"))
    # Commented keys are keys too.
    for section, keys in re.findall(r"\[(\w+)\]\n(.*?)(?=\n\[|\Z)", SAMPLE, re.DOTALL):
        for key in re.findall(r"^# (\w+) = ", keys, re.MULTILINE):
            configuration_keys = type(getattr(read_configuration(tmp_path / "federation.toml"), section)).model_fields
            assert key in configuration_keys
    pinned = {site: str(v) * 64 for v, site in enumerate(plan.sites)}
    assert Policy(peers=pinned).objection(plan) is None
    assert "needs 2 sites of it among this site's [peers]" in (Policy().objection(plan) or "")
    assert read_policy(DEPLOY / "policy.toml") == Policy(aggregation="secure")
    assert read_settings(DEPLOY / "agent.toml", {}, ("data", "target", "id", "coordinator")).data
