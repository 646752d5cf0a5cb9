"""The work on a run's messages: which data set is read, what the coordinator hears of it, and where results go."""

import dataclasses
import shutil

import numpy as np
import pytest
from agent_files import inputs, write
from agent_home import Agent
from ledger_home import answer, offer, told
from test_data_sets import TABLE
from test_model_store import Stored, plan

from coreg_core.protocol.messages import Fetched, Finished, Offer, PlanRefused, Proposal, Step
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Membership, Plan, Privacy, Scoring
from coreg_core.protocol.words import Words
from coreg_wire.transport.codec import Assembler
from site_agent.data.tables import read_table
from site_agent.ledger import read_ledger
from site_agent.models.file import load_model, save_model
from site_agent.policy.policy import Policy


@pytest.fixture
def agent(tmp_path):
    made = Agent(tmp_path, policy=Policy(aggregation="plaintext", scoring=True))
    yield made
    made.ledger.close()


def answers(agent, message, *, listening=True):
    """To a message of the coordinator, or to a plan as it proposes it first."""
    message = Proposal(message.run, 0, message) if isinstance(message, Plan) else message
    frames, _ = agent.workers.work(message, listening=listening)
    assembler = Assembler()
    assembler.expect(message.run, 1000)
    return [found for frame in frames if (found := assembler.feed_site(frame)) is not None]


def refusal(agent, message):
    [answer] = answers(agent, message)
    assert isinstance(answer, PlanRefused)
    return answer.reason


def first_step(offer):
    """Where another site lists the same instances."""
    return Step(offer.run, 0, 0, roster=(offer, dataclasses.replace(offer, site="south")))


def twice(answer):
    """The sum, where the other site answered alike."""
    return Step(answer.run, 0, answer.step + 1, words=Words(2 * answer.words.values))


def the_end(answer):
    return Finished(answer.run, Outcome.CONVERGED, "", (answer.head, dataclasses.replace(answer.head, site="south")))


def test_the_fault_of_a_table_is_for_the_operator_and_the_coordinator_hears_that_there_is_one(agent, tmp_path):
    write(tmp_path, TABLE.replace("0.5,", "half,", 1), "local.csv")
    for reason in (agent.workers.judge(plan("r1")).reason, refusal(agent, plan("r1"))):
        assert (
            reason
            == "its data set 'patients' cannot be used; its operator has the reason (`coreg-agent status`, or `runs`)."
        )
        assert "'half'" in (agent.workers.tables.fault_behind(reason) or "")
    assert agent.workers.tables.fault_behind("another reason") is None
    assert "'half'" in agent.workers.tables.troubles["patients"]
    assert "data_unusable" in agent.noticed
    assert not any("half" in notice.text for notice in agent.notices)
    write(tmp_path, TABLE, "local.csv")
    assert agent.workers.judge(plan("r1")).reason is None
    assert isinstance(answers(agent, plan("r1"))[0], Offer)
    assert agent.workers.tables.troubles == {}


def test_the_operator_hears_of_a_fault_before_a_run_needs_the_table(agent, tmp_path):
    write(tmp_path, "id,a,b,y\nq1,1,2,3\nq2,2,x,4\nq3,2,1,\n", "bad.csv")
    write(tmp_path, "id,a,b,y\nq1,1,2,3\nq2,2,1,4\n", "unaligned.csv")  # no row is shared yet: an alignment is next
    write(tmp_path, "id\nq1\nq1\n", "twice.csv")
    listed = {name: inputs(tmp_path / f"{name}.csv") for name in ("bad", "gone", "unaligned")}
    listed["typo"] = inputs(tmp_path / "local.csv").model_copy(update={"shared": str(tmp_path / "people/x/a.json")})
    listed["twice"] = inputs(tmp_path / "twice.csv").model_copy(update={"target": None})
    listed |= {"patients": inputs(tmp_path / "local.csv")}
    agent.data_sets.relist(listed)
    agent.workers.tables.read_ahead({**listed, "removed": listed["bad"]})
    assert set(agent.workers.tables.troubles) == {"bad", "gone", "typo", "twice"}
    assert "line 3, column 'b': 'x' is not a finite number" in agent.workers.tables.troubles["bad"]
    assert "run the alignment first" in agent.workers.tables.troubles["typo"]
    assert agent.noticed.count("data_unusable") == 4
    assert agent.noticed.count("data_read") == 1
    assert agent.workers.judge(plan("r1")).reason is None
    assert agent.noticed.count("data_read") == 1, "the run finds it read"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "../out"}, "run"),
        ({"study": "a/b"}, "study"),
        ({"data": "staff"}, "this site has no data set 'staff'"),
        ({"objective": Scoring("t9", "agreement")}, "no model of run t9"),
    ],
)
def test_a_plan_that_this_site_cannot_serve_is_refused_before_the_operator_is_asked(agent, tmp_path, changes, words):
    agent.data_sets.relist({name: inputs(tmp_path / "local.csv") for name in ("patients", "other")})
    asked = dataclasses.replace(plan("r1"), **changes)
    for reason in (agent.workers.judge(asked).reason, refusal(agent, asked)):
        assert words in reason
    assert agent.workers.counters.refusals == 1


def test_the_agreement_refuses_a_data_set_without_labels(tmp_path):
    table = write(tmp_path, "id,a,b\nq1,1,2\nq2,2,0.5\n", "none.csv")
    agent = Agent(tmp_path, unlabelled=inputs(table, labels=False))
    assert "Use the additive objective" in refusal(agent, dataclasses.replace(plan("r1"), data="unlabelled"))
    agent.ledger.close()


def test_a_result_that_is_here_already_is_fetched_without_work(agent, tmp_path):
    Stored("north", tmp_path / "models").put("r1")
    assert agent.workers.judge(plan("r1")).fetched
    assert [type(a) for a in answers(agent, plan("r1"))] == [Fetched]
    assert "data_read" not in agent.noticed


def test_a_plan_that_the_ledger_forbids_is_refused_before_the_operator_is_asked(tmp_path):
    """With sealed sums, on instances that were summed with other sites."""
    peers = {site: letter * 64 for site, letter in (("north", "a"), ("south", "b"), ("west", "c"), ("east", "d"))}
    agent = Agent(tmp_path, policy=Policy(peers=peers, members_may_learn="operators"))
    try:
        sealed = dataclasses.replace(
            plan("r2"), privacy=Privacy(), membership=Membership(("north", "south", "west"), 3)
        )
        assert agent.workers.judge(sealed).reason is None
        about = agent.workers.judge(sealed).about
        assert (
            "encrypted, and computed from labels too: the members of the run read the sums over 3 or more sites"
            in about["leaves this machine"]
        )
        data = agent.data_sets.get("patients")[0].data
        agent.ledger.know_as(data.ids_digest, data.instances)
        agent.ledger.record(offer(ids=data.ids_digest))
        agent.ledger.record(answer(), told(("east", "north", "south")))
        assert "this site was summed with east, north, south" in (agent.workers.judge(sealed).reason or "")
        fewer = dataclasses.replace(sealed, membership=Membership(("north", "south", "west"), 2))
        assert agent.workers.judge(fewer).reason is None, "its roster decides"
    finally:
        agent.ledger.close()


def test_nothing_is_recorded_of_an_answer_that_nobody_listens_to(agent):
    assert answers(agent, plan("r1"), listening=False) == []
    assert list(read_ledger(agent.ledger.path)) == []
    assert agent.workers.room("r1") is not None, "the run goes on when its plan comes again"


def test_an_answer_that_nobody_listened_to_is_recorded_with_what_it_tells_once_it_is_sent(agent):
    [offer] = answers(agent, plan("r1"))
    assert answers(agent, first_step(offer), listening=False) == []
    assert answers(agent, plan("r1")) == [offer], "in a new session of the same process the attempt goes on"
    [answer] = answers(agent, first_step(offer))
    line = list(read_ledger(agent.ledger.path))[-1]
    assert (line["kind"], line["question"], line["sha256"]) == ("Answer", "sizes", answer.words.digest)
    assert agent.ledger.recall(plan("r1"), offer.ids_digest).answered == 1
    assert answers(agent, first_step(offer)) == [answer], "it is sent once more, as after a session that broke"
    assert agent.ledger.recall(plan("r1"), offer.ids_digest).answered == 1, "and tells nothing new"


def test_a_run_tells_the_operator_how_far_it_is_and_leaves_no_log_of_itself(agent, tmp_path):
    [answer] = answers(agent, first_step(answers(agent, plan("r1"))[0]))
    while answer.words is not None:
        [answer] = answers(agent, twice(answer))
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["r1.end", "r1.sums"]
    rounds = [notice.fields["round"] for notice in agent.notices if notice.name == "progress"]
    assert rounds == list(range(rounds[0], rounds[0] + len(rounds)))
    assert all(notice.private for notice in agent.notices if notice.name == "progress")
    assert set(answer.report.residual) <= {10.0**k for k in range(-20, 9)}, "the coordinator hears powers of ten alone"
    assert isinstance(answers(agent, the_end(answer))[0], Fetched)
    assert list((tmp_path / "runs").iterdir()) == []
    assert [p.name for p in agent.workers.written]


@pytest.mark.parametrize(("outcome", "again"), [(Outcome.CONVERGED, Fetched), (Outcome.STALLED, Offer)])
def test_only_a_run_that_cannot_resume_is_confirmed_from_the_ledger(agent, tmp_path, outcome, again):
    """The site's answer was the last, CONVERGED. The run stalled after it, and its log here was lost."""
    [answer] = answers(agent, first_step(answers(agent, plan("r1"))[0]))
    while answer.words is not None:
        [answer] = answers(agent, twice(answer))
    heads = the_end(answer).heads if outcome.good else ()
    [_] = answers(agent, Finished("r1", outcome, "", heads))
    assert list(read_ledger(agent.ledger.path))[-1]["outcome"] == outcome.name
    agent.workers.forget("r1")
    shutil.rmtree(tmp_path / "runs")
    shutil.rmtree(tmp_path / "models", ignore_errors=True)
    assert [type(a) for a in answers(agent, plan("r1"))] == [again]


def test_a_scoring_takes_its_batches_from_the_plan_and_writes_a_file_for_each(agent, tmp_path):
    [path] = Stored("north", tmp_path / "models").put("t1")
    for name, rows in (("monday", "n2,1,2\nn1,0,1\n"), ("tuesday", "n1,2,2\nn3,,\n")):
        write(tmp_path, f"id,a,b\n{rows}", f"{name}.csv")
    days = {day: inputs(tmp_path / f"{day}.csv", None) for day in ("monday", "tuesday")}
    agent.data_sets.relist({"patients": inputs(tmp_path / "local.csv"), **days})
    terms = Scoring("t1", "agreement", batches=("monday", "tuesday"))
    agent.workers.policy = agent.workers.policy.model_copy(update={"scores_of_two": True})
    assert "has no record of 1 of 4 instances" in refusal(agent, plan("s0", objective=terms))

    scoring = plan("s1", objective=dataclasses.replace(terms, missing_instances="mean"))
    [accepted] = answers(agent, scoring)
    assert accepted.n_unlabelled == 4
    [sizes] = answers(agent, first_step(accepted))
    [parts] = answers(agent, twice(sizes))
    model = load_model(path)
    monday, tuesday = (model.part(read_table(tmp_path / f"{day}.csv")) for day in days)
    told = [monday[1], monday[0], tuesday[0], model.mean_on_shared]
    [last] = answers(agent, twice(parts))
    [fetched] = answers(agent, the_end(last))
    assert isinstance(fetched, Fetched)
    files = agent.workers.written
    assert [p.relative_to(tmp_path).as_posix() for p in files] == [f"models/waits/s1/{day}.csv" for day in days]
    scores = np.concatenate([read_table(p).numbers("score") for p in files])
    np.testing.assert_allclose(scores, model.intercept + np.array(told), rtol=1e-12)


def test_a_model_of_another_site_scores_nothing(agent, tmp_path):
    [path] = Stored("north", tmp_path / "models").put("t1")
    save_model(path, dataclasses.replace(load_model(path), site="south"))
    assert "belongs to another site" in refusal(agent, plan("s1", objective=Scoring("t1", "agreement")))
