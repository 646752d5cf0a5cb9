"""What a ledger knows after a restart: a site's shared instances whatever digest of them went out, and the rows of a run."""

from dataclasses import replace

from ledger_home import answer, offer, told

from coreg_core.objectives.setting import Membership
from coreg_core.protocol.plan import Plan
from site_agent.consent.objections import objections, refusal
from site_agent.data.shared_set import ids_digest, keyed, own_name
from site_agent.ledger import Ledger, read_ledger

ALL = ("a", "b", "c", "d")
PLAN = Plan("r", "clinics", Membership(ALL, 3))
PLAIN = ids_digest(["p1", "p2", "p3"])
SALT = b"this site's own"
SECRETS = ("a first secret of the sites", "another secret of the sites")


def against_memory(plan, memory, digest):
    return refusal(objections(plan, None, None, memory, digest)) or ""


def session(path, secret, sites=ALL, *, run="r", salt=SALT, plain=PLAIN):
    """An agent that is started with that secret: what it knows before it is summed with these sites, and then it is."""
    digest = plain if secret is None else keyed(plain, secret)
    ledger = Ledger(path)
    ledger.memory.know_as(digest, own_name(plain, salt))
    fewer = replace(PLAN, run="fewer", membership=Membership(("a", "b", "c"), 3))
    known = ledger.memory.recall(PLAN, digest).answered, against_memory(fewer, ledger.memory, digest)
    ledger.record(offer(run, PLAN.digest, digest))
    ledger.record(answer(run), told(sites))
    ledger.close()
    return known


def test_another_secret_or_none_is_no_other_data_set(tmp_path):
    session(tmp_path / "l", SECRETS[0])
    for number, secret in enumerate((SECRETS[1], None, SECRETS[0])):
        answered, before = session(tmp_path / "l", secret, run=f"r{number}")
        assert answered == number + 1, "questions of the plan, over all secrets"
        assert "The difference of the two sums reveals the answers of d alone" in before
    accepted = [entry for entry in read_ledger(tmp_path / "l") if entry["kind"] == "Offer"]
    assert (len({e["instances"] for e in accepted}), len({e["ids_digest"] for e in accepted})) == (1, 3)


def test_other_instances_are_others(tmp_path):
    session(tmp_path / "l", SECRETS[0])
    assert session(tmp_path / "l", None, plain="0" * 64) == (0, "")


def test_a_run_has_the_rows_that_its_answers_came_from(tmp_path):
    """Not those of an offer that was never answered."""
    known = []
    for rows, words in (("one", None), ("two", (1, 2, 3)), ("three", None)):
        ledger = Ledger(tmp_path / "l")
        known.append(ledger.memory.recall(PLAN, PLAIN).rows)
        ledger.record(offer("r", PLAN.digest, PLAIN, rows))
        ledger.record(answer("r", words=words), None if words is None else told(ALL))
        ledger.close()
    ledger = Ledger(tmp_path / "l")
    assert [*known, ledger.memory.recall(PLAN, PLAIN).rows] == ["", "", "two", "two"]
    assert ledger.memory.recall(replace(PLAN, run="another"), PLAIN).rows == ""
    ledger.close()
