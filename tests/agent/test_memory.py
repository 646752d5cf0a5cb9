"""What was answered, scored and opened outlasts the process, and an answer waits for its record."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from ledger_home import answer, offer, told
from machine.tiny import make_plan

from coreg_core.errors import Refused, StorageError
from coreg_core.messages import Approval
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.scoring import Scoring
from coreg_core.plan import OBJECTIVES, QUESTIONS, Plan
from coreg_core.terms import Membership, Privacy
from site_agent.consent.consent import Consent
from site_agent.consent.objection import refusal
from site_agent.consent.policy import Policy
from site_agent.data.ids import ids_digest, keyed, own_name
from site_agent.disclosure import Disclosure, row_set
from site_agent.ledger import Ledger, read_ledger

SITES = ("a", "b", "c")


def opened(path, *pairs, **keys):
    """These scores, given by an agent that is started for them."""
    ledger = Ledger(path)
    try:
        consent = Consent(Policy(**keys), ledger.memory, lambda: 0.0)
        scores = np.array(pairs, dtype="<u8").reshape(-1, 2)
        plan = Plan("r", "tests", Membership(SITES, 3), Scoring("r0"))
        consent.permit(plan, "ids", Disclosure("scores", SITES, scores=scores), 0.0)
    finally:
        ledger.close()


def test_the_sixth_model_or_set_of_sites_is_refused_whatever_process_gave_the_others(tmp_path):
    path = tmp_path / "l"
    for k in range(5):
        for _ in range(2):  # a repeated one tells nothing new
            opened(path, (7, k), (8, k))
    with pytest.raises(
        Refused, match=r"scored by 5 models or sets of sites \(models_per_individual"
    ):
        opened(path, (7, 5), (9, 5))
    opened(path, (9, 5), (9, 6))
    opened(path, (7, 5), models_per_individual=6)
    assert len(list(read_ledger(path))) == 7, "nothing of what was refused or known"
    ledger = Ledger(path)
    assert len(ledger.memory.scores()) == 13
    ledger.close()


def test_a_site_opens_the_same_rows_as_often_as_its_policy_says_over_restarts(tmp_path):
    rows = row_set(b"secret", [b"p1", b"p2"], {0: 1.5}, [b"a", b""])
    for allowed in (1, 2, 0):
        ledger = Ledger(tmp_path / "l")
        consent = Consent(Policy(openings=2), ledger.memory, lambda: 0.0)
        plan = replace(make_plan(), run=f"run-{allowed}", objective=Additive(), privacy=Privacy())
        sums = Disclosure("sums", SITES, rows=rows, labelled=100, opens=True)
        if allowed:
            consent.permit(plan, "ids", sums, 0.0)
        else:
            with pytest.raises(Refused, match="opened 2 times, and openings = 2"):
                consent.permit(plan, "ids", sums, 0.0)
        ledger.close()
    first, second = read_ledger(tmp_path / "l")
    assert "rows" in first, "the rows are written once"
    assert second["again"] == rows.digest, "the rows are written once"


def test_no_answer_is_given_in_a_rehearsal(tmp_path):
    """A coordinator cannot get more consent by calling a training a rehearsal."""
    rows = row_set(b"secret", [b"p1", b"p2"], {0: 1.5}, [b"a", b""])
    sums = Disclosure("sums", SITES, rows=rows, labelled=100, opens=True)
    ledger = Ledger(tmp_path / "l")
    plan = replace(make_plan(), objective=Additive(), privacy=Privacy(), rehearsal=True)
    with pytest.raises(Refused, match="the plan is a rehearsal, which asks for no answer"):
        Consent(Policy(), ledger.memory, lambda: 0.0).permit(plan, "ids", sums, 0.0)
    ledger.close()
    assert list(read_ledger(tmp_path / "l")) == [], "nothing is spent"


def test_no_score_is_given_without_its_line(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="No space left on device"):
        opened(tmp_path / "l", (7, 0))


def test_a_retry_of_a_run_never_uses_the_last_opening(tmp_path):
    """A member that restarts after each opening would else burn those of all others."""
    rows = row_set(b"secret", [b"p1", b"p2"], {0: 1.5}, [b"a", b""])
    sums = Disclosure("sums", SITES, rows=rows, labelled=100, opens=True)
    ledger = Ledger(tmp_path / "l")
    consent = Consent(Policy(openings=3), ledger.memory, lambda: 0.0)
    plan = replace(make_plan(), objective=Additive(), privacy=Privacy())
    for _ in range(2):
        consent.permit(plan, "ids", sums, 0.0)
    with pytest.raises(Refused, match="One of openings = 3 is left, and a retry does not use it"):
        consent.permit(plan, "ids", sums, 0.0)
    consent.permit(replace(plan, run="the next study"), "ids", sums, 0.0)
    ledger.close()


def test_every_question_says_what_it_discloses():
    kinds = {name: kind for name, kind in QUESTIONS.items() if name != "keys"}
    assert all(len(kind.discloses) > 20 for kind in QUESTIONS.values())
    bearing = {"respond affine", "scores", "sums", "private", "parts"}
    assert {name for name, kind in kinds.items() if kind.labels == "in the vectors"} == bearing
    in_scalars = {name for name, kind in kinds.items() if kind.labels == "in the scalars"}
    assert in_scalars == {"sizes", "summary", "gain"}
    of_each = sum(len(objective.questions) for objective in OBJECTIVES.values())
    assert of_each == len(kinds), "each kind has a name of its own"


def test_a_line_counts_the_numbers_and_bytes_of_an_answer(tmp_path):
    ledger = Ledger(tmp_path / "l")
    ledger.record(answer(), Disclosure("summary", SITES, 3))
    ledger.record(answer(step=1), Disclosure("sums", SITES, 2))
    ledger.close()
    lines = [entry for entry in read_ledger(tmp_path / "l") if entry["kind"] == "Answer"]
    assert [(e["question"], e["numbers"], e["bytes"]) for e in lines] == [
        ("summary", 3, 24),
        ("sums", 2, 24),
    ]


# --- rows and instances of a run ------------------------------------------------------------------

ALL = ("a", "b", "c", "d")
PLAN = Plan("r", "clinics", Membership(ALL, 3))
PLAIN = ids_digest(["p1", "p2", "p3"])
SALT = b"this site's own"
SECRETS = ("a first secret of the sites", "another secret of the sites")


def against_memory(plan, memory, digest):
    consent = Consent(None, memory, lambda: 0.0)
    return refusal(consent.objections(plan, plan.sites[0], ids_digest=digest)) or ""


def session(path, secret, sites=ALL, *, run="r", salt=SALT, plain=PLAIN):
    """An agent that is started with that secret: what it knows before it is summed with these
    sites, and then it is.
    """
    digest = plain
    if secret is not None:
        digest = keyed(plain, secret)
    ledger = Ledger(path)
    ledger.memory.know_as(digest, own_name(plain, salt))
    fewer = replace(PLAN, run="fewer", membership=Membership(("a", "b", "c"), 3))
    known = (
        ledger.memory.answered(PLAN, digest),
        against_memory(fewer, ledger.memory, digest),
    )
    ledger.record(offer(run, PLAN.digest, digest))
    ledger.record(answer(run), told(sites))
    ledger.close()
    return known


def test_another_secret_or_none_is_no_other_data_set(tmp_path):
    session(tmp_path / "l", SECRETS[0])
    assert session(tmp_path / "l", None, plain="0" * 64) == (0, ""), "other instances"
    for number, secret in enumerate((SECRETS[1], None, SECRETS[0])):
        answered, before = session(tmp_path / "l", secret, run=f"r{number}")
        assert answered == number + 1, "questions of the plan, over all secrets"
        assert "The difference of the two sums reveals the answers of d alone" in before
    accepted = [entry for entry in read_ledger(tmp_path / "l") if entry["kind"] == "Offer"]
    assert len({e["instances"] for e in accepted}) == 2
    assert len({e["ids_digest"] for e in accepted}) == 4


def test_a_run_has_the_rows_that_its_answers_came_from(tmp_path):
    """Not those of an offer that was never answered."""
    known = []
    for rows, words in (("one", None), ("two", (1, 2, 3)), ("three", None)):
        ledger = Ledger(tmp_path / "l")
        known.append(ledger.memory.rows_of(PLAN.run))
        ledger.record(offer("r", PLAN.digest, PLAIN, rows))
        disclosure = None
        if words is not None:
            disclosure = told(ALL)
        ledger.record(answer("r", words=words), disclosure)
        ledger.close()
    ledger = Ledger(tmp_path / "l")
    assert [*known, ledger.memory.rows_of(PLAN.run)] == ["", "", "two", "two"]
    assert ledger.memory.rows_of("another") == ""
    ledger.close()


def test_a_restarted_agent_knows_who_asked_today_and_what_its_operator_approved(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with closing(Ledger(path)) as ledger:
        ledger.memory.deciding["r"] = "digest of the plan"
        ledger.record(Approval("r", True))
        ledger.record(offer("r", "digest of the plan", "ids"))
        ledger.record(offer("other", "another plan", "ids"))
        asked = Disclosure("records", ("north", "south"), asked=(("south", 3),))
        ledger.memory.note_disclosure("r", asked, "2026-11-28")
        ledger.memory.note_disclosure("r", asked, "2026-11-28")
    with closing(Ledger(path)) as again:
        memory = again.memory
        assert memory.asked("south", "2026-11-28") == 6
        assert memory.asked("south", "2026-11-29") == 0
        assert memory.agreed == {"digest of the plan"}
