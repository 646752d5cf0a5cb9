"""`check --plan` for a data set that has no target: the policy decides now, and the rows are read with the run."""

import json

import pytest
from agent_files import agent, write

from coreg_core.protocol.plan import Membership, Plan, Privacy, Scoring


@pytest.mark.parametrize(("allowed", "code"), [("true", 0), ("false", 4)])
def test_a_scoring_plan_is_judged_by_the_policy_although_its_rows_are_read_later(tmp_path, monkeypatch, allowed, code):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, '[data.new]\ntable = "new.csv"\nid = "id"\n', "agent.toml")
    write(tmp_path, "id,u\np10001,1\np10002,2\n", "new.csv")
    sites, terms = Membership(("east", "north", "west"), 3), Scoring("t9", "agreement")
    made = Plan("r2", "waits", sites, terms, data="new", privacy=Privacy("plaintext"))
    write(tmp_path, json.dumps(made.to_dict()), "plan.json")
    write(tmp_path, f'aggregation = "plaintext"\nscoring = {allowed}\n', "policy.toml")
    done = agent("check", "--insecure", "--name", "north", "--policy", "policy.toml", "--plan", "plan.json")
    assert done.exit_code == code, done.stdout
    assert ("WRONG  plan: scoring together is not allowed (scoring = false" in done.stdout) == bool(code)
    assert ("plan: the policy allows it; the rows of 'new' are read when it arrives" in done.stdout) != bool(code)
