"""What a ledger knows of a site's shared instances, whatever digest of them went out: a new ids_secret forgets nothing."""

import dataclasses
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from coreg_core.agreement.columns import Column
from coreg_core.protocol.messages import Ask, Masked, PlanAccepted, Vector, Words
from coreg_core.protocol.plan import Membership, Plan
from site_agent.data.shared_set import ids_digest, keyed, names_of
from site_agent.ledger import Ledger, read_ledger
from site_agent.ledger.replay import Memory
from site_agent.machine.differencing import objection
from site_agent.machine.memory import Remembered
from site_agent.machine.site_data import PrivateData
from site_agent.policy.guards import terms_of
from site_agent.policy.policy import Policy

PLAN = Plan("r", "clinics", Membership(("a", "b", "c", "d"), 3))
PLAIN = ids_digest(["p1", "p2", "p3"])
SALT, OTHER_SALT = b"this site's own", b"another file"
SECRETS = ("a first secret of the sites", "another secret of the sites")


def data(secret, salt=SALT):
    digest = PLAIN if secret is None else keyed(PLAIN, secret)
    return PrivateData(np.ones((1, 1)), np.ones(1), np.ones((3, 1)), digest, salt, instances=names_of(PLAIN, salt))


def session(path, secret, sites, *, run="r", salt=SALT, old=False, most_bytes=np.inf):
    """An agent that is started with that secret: its terms, before and after it was summed with these sites."""
    ledger, mine = Ledger(path, most_bytes=most_bytes), data(secret, salt)
    terms = terms_of(Policy(answers="clear"), ledger, None, None if old else mine)  # of an older release: without names
    before = terms.summed_with(mine.ids_digest)
    count = terms.recall(PLAN, mine.ids_digest).answered
    ask = Ask(run, 0, 0, "affine", (Column(0.01, 0.08),), True, Vector(np.zeros((3, 1))))
    ledger.record(PlanAccepted(run, PLAN.digest, 3, mine.ids_digest, "data", 0.0, 0.0, 1))
    ledger.record(Masked(run, 0, 0, Words(np.arange(5, dtype="<u8"))), ask, Remembered(participants=sites))
    ledger.close()
    return before, count


def test_another_secret_or_none_is_no_other_data_set(tmp_path):
    path = tmp_path / "l"
    session(path, SECRETS[0], ("a", "b", "c", "d"))
    for number, secret in enumerate((SECRETS[1], None, SECRETS[0])):
        before, count = session(path, secret, ("a", "b", "c", "d"), run=f"r{number}")
        assert count == number + 1, "questions of the plan, over all secrets"
        said = objection(frozenset("abc"), before, consents=False)
        assert said is not None
        assert "the difference of such sums is the answer of d alone" in said
    told = list(read_ledger(path))
    assert len({entry["instances"] for entry in told if entry["kind"] == "PlanAccepted"}) == 1
    assert len({entry["ids_digest"] for entry in told if entry["kind"] == "PlanAccepted"}) == 3


def test_a_ledger_of_an_older_release_counts_under_the_digest_that_it_has(tmp_path):
    path = tmp_path / "l"
    session(path, None, ("a", "b", "c", "d"), old=True)
    for number, secret in enumerate(SECRETS):  # a secret is introduced, and changed later
        before, count = session(path, secret, ("a", "b", "c", "d"), run=f"r{number}")
        assert count == number + 1
        assert objection(frozenset("abc"), before, consents=False) is not None


def test_a_site_that_lost_its_own_secret_knows_them_by_the_digest_that_goes_out(tmp_path):
    path = tmp_path / "l"
    session(path, SECRETS[0], ("a", "b", "c", "d"))
    assert session(path, SECRETS[0], ("a", "b", "c", "d"), run="r1", salt=OTHER_SALT)[1] == 1
    assert session(path, SECRETS[1], ("a", "b", "c", "d"), run="r2", salt=OTHER_SALT)[1] == 2


def test_other_instances_are_others(tmp_path):
    session(tmp_path / "l", SECRETS[0], ("a", "b", "c", "d"))
    ledger = Ledger(tmp_path / "l")
    other = dataclasses.replace(data(SECRETS[0]), ids_digest="0" * 64, instances=names_of("0" * 64, SALT))
    terms = terms_of(Policy(answers="clear"), ledger, None, other)
    assert terms.summed_with(other.ids_digest) == frozenset()
    assert terms.recall(PLAN, other.ids_digest).answered == 0
    ledger.close()


def test_it_survives_a_file_that_is_put_aside(tmp_path):
    path = tmp_path / "l.jsonl"
    session(path, SECRETS[0], ("a", "b", "c", "d"))
    before, count = session(
        path, SECRETS[1], ("a", "b", "c", "d"), run="r1", most_bytes=1
    )  # every line in a file of its own
    assert (count, len(before)) == (1, 1)
    assert session(path, None, ("a", "b", "c"), run="r2")[1] == 2


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from([None, "one", "two"]), st.integers(0, 3)), max_size=12)
)
def test_what_a_file_carries_on_is_what_its_lines_say(steps):
    """Whichever digests were united in whatever order, and wherever a file was put aside."""
    whole, carried = Memory(), Memory()
    for number, (digest, name, cut) in enumerate(steps):
        run = f"run-{number}"
        accepted = {"kind": "PlanAccepted", "run": run, "plan": "p", "ids_digest": digest}
        accepted |= {} if name is None else {"instances": name}
        masked = {
            "kind": "Masked",
            "run": run,
            "question": 0,
            "attempt": 0,
            "participants": ["a", run],
            "may_change": False,
        }
        for entry in (accepted, masked):
            whole.add(entry)
            carried.add(entry)
        if cut == 0:
            again = Memory.from_json(json.loads(json.dumps(carried.to_json())))
            assert again is not None
            carried = again
    assert whole.to_json() == carried.to_json()
    for digest in "xyz":
        known_as = (digest,)
        assert whole.summed_with(known_as) == carried.summed_with(known_as)
    runs = {sites for each in (whole.summed_with(("x", "y", "z", "one", "two")),) for s in each for sites in s.sites}
    assert runs == ({"a"} | {f"run-{i}" for i in range(len(steps))} if steps else set())
