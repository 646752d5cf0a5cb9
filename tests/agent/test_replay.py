"""What a ledger knows of a site's shared instances, whatever digest of them went out: a new ids_secret forgets nothing."""

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from ledger_home import answer, offer, told

from coreg_core.protocol.plan import Membership, Plan
from site_agent.data.shared_set import ids_digest, keyed, names_of
from site_agent.ledger import Ledger, read_ledger
from site_agent.ledger.replay import Memory
from site_agent.machine.differencing import objection
from site_agent.machine.site_data import PrivateData
from site_agent.policy.guards import rules_of
from site_agent.policy.policy import Policy

ALL = ("a", "b", "c", "d")
PLAN = Plan("r", "clinics", Membership(ALL, 3))
PLAIN = ids_digest(["p1", "p2", "p3"])
SALT, OTHER_SALT = b"this site's own", b"another file"
SECRETS = ("a first secret of the sites", "another secret of the sites")


def session(path, secret, sites=ALL, *, run="r", salt=SALT, plain=PLAIN, named=True, max_bytes=np.inf):
    """An agent that is started with that secret: what it knows before it is summed with these sites, and then it is."""
    digest = plain if secret is None else keyed(plain, secret)
    names = names_of(plain, salt) if named else ()
    mine = PrivateData(np.ones((1, 1)), np.ones(1), np.ones((3, 1)), digest, salt, instances=names)
    ledger = Ledger(path, max_bytes=max_bytes)
    rules = rules_of(Policy(aggregation="plaintext"), ledger, None, mine)
    known = rules.recall(PLAN, digest).answered, rules.summed_with(digest)
    ledger.record(offer(run, PLAN.digest, digest))
    ledger.record(answer(run), told(sites))
    ledger.close()
    return known


def test_another_secret_or_none_is_no_other_data_set(tmp_path):
    """Also if the earlier sessions did not know a name of their instances, only the digest."""
    session(tmp_path / "l", SECRETS[0])
    session(tmp_path / "digests", None, named=False)
    for path, secrets in ((tmp_path / "l", (SECRETS[1], None, SECRETS[0])), (tmp_path / "digests", SECRETS)):
        for number, secret in enumerate(secrets):
            answered, before = session(path, secret, run=f"r{number}")
            assert answered == number + 1, "questions of the plan, over all secrets"
            reason = objection(frozenset("abc"), before, consents=False)
            assert "The difference of the two sums reveals the answers of d alone" in (reason or "")
    accepted = [entry for entry in read_ledger(tmp_path / "l") if entry["kind"] == "Offer"]
    assert (len({e["instances"] for e in accepted}), len({e["ids_digest"] for e in accepted})) == (1, 3)


def test_a_site_that_lost_its_salt_knows_its_instances_by_the_digest_that_goes_out(tmp_path):
    session(tmp_path / "l", SECRETS[0])
    assert session(tmp_path / "l", SECRETS[0], run="r1", salt=OTHER_SALT)[0] == 1
    assert session(tmp_path / "l", SECRETS[1], run="r2", salt=OTHER_SALT)[0] == 2


def test_other_instances_are_others(tmp_path):
    session(tmp_path / "l", SECRETS[0])
    assert session(tmp_path / "l", None, plain="0" * 64) == (0, frozenset())


def test_names_survive_a_file_that_is_put_aside(tmp_path):
    path = tmp_path / "l.jsonl"
    session(path, SECRETS[0])
    answered, before = session(path, SECRETS[1], run="r1", max_bytes=1)  # every line in a file of its own
    assert (answered, len(before)) == (1, 1)
    assert session(path, None, ("a", "b", "c"), run="r2")[0] == 2


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from([None, "one", "two"]), st.integers(0, 3)), max_size=12)
)
def test_a_carried_memory_is_the_memory_of_its_lines(steps):
    """Whichever digests were united in whatever order, and wherever a file was put aside."""
    whole, carried = Memory(), Memory()
    for number, (digest, name, cut) in enumerate(steps):
        run = f"run-{number}"
        accepted = {"kind": "Offer", "run": run, "plan": "p", "ids_digest": digest}
        accepted |= {} if name is None else {"instances": name}
        answered = {"kind": "Answer", "run": run, "numbers": 3, "participants": ["a", run], "may_change": False}
        for entry in (accepted, answered):
            whole.add(entry)
            carried.add(entry)
        if cut == 0:
            again = Memory.from_json(json.loads(json.dumps(carried.to_json())))
            assert again is not None
            carried = again
    assert whole.to_json() == carried.to_json()
    for digest in "xyz":
        assert whole.summed_with((digest,)) == carried.summed_with((digest,))
    sites = {site for summed in whole.summed_with(("x", "y", "z", "one", "two")) for site in summed.sites}
    assert sites == ({"a"} | {f"run-{i}" for i in range(len(steps))} if steps else set())
