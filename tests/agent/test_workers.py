"""The work on a run's messages: which data set is read, what the coordinator hears of it, and where
results go.
"""

from dataclasses import replace

import numpy as np
import pytest
from agent_files import inputs, write
from agent_home import Agent
from ledger_home import answer, offer, told
from machine.tiny import Pump, site_with
from numpy.testing import assert_allclose
from test_data_sets import TABLE
from test_model_store import Stored, plan

from coreg_core.messages import (
    PROTOCOL_VERSION,
    Fetched,
    Finished,
    Hello,
    Offer,
    PlanRefused,
    Proposal,
    Step,
    Unaligned,
    Words,
)
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, alignment_of
from coreg_core.terms import Membership, Privacy
from coreg_sim.simulate import simulated_keys
from coreg_wire.transport.codec import Assembler
from site_agent.consent.policy import Policy
from site_agent.data.ids import keyed
from site_agent.data.tables import read_table
from site_agent.disclosure import Disclosure, row_set
from site_agent.ledger import read_ledger
from site_agent.machine.agreement import AgreementComputation
from site_agent.machine.alignment import IdList
from site_agent.models.batch import batch_of
from site_agent.models.file import load_model, save_model
from site_agent.service.identity_in_use import KeysInUse
from site_agent.site_data import secret_of

SITES = ("north", "south", "west")


@pytest.fixture
def agent(tmp_path):
    made = Agent(tmp_path, policy=Policy(aggregation="plaintext"))
    yield made
    made.ledger.close()


def worked(agent, message, *, listening=True):
    """The answers to a message of the coordinator, or to a plan as it proposes it first, and the
    worker's report.
    """
    if isinstance(message, Plan):
        message = Proposal(message.run, 0, message)
    frames, report = agent.workers.work(message, listening=listening)
    assembler = Assembler()
    assembler.expect(message.run, 800_000)
    answers = [assembler.feed_site(frame) for frame in frames]
    return [answer for answer in answers if answer is not None], report


def answers(agent, message, *, listening=True):
    return worked(agent, message, listening=listening)[0]


def refusal(agent, message):
    [answer] = answers(agent, message)
    assert isinstance(answer, PlanRefused)
    return answer.reason


def first_step(offer):
    """Where another site lists the same instances."""
    return Step(offer.run, offer.attempt, 0, roster=(offer, replace(offer, site="south")))


def twice(answer):
    """The sum, where the other site answered alike."""
    return Step(answer.run, answer.attempt, answer.step + 1, summed=Words(2 * answer.summed.values))


def last_step(agent, offer):
    """The step that the last answer is to; all before it are answered."""
    step = first_step(offer)
    while (answer := answers(agent, step)[0]).summed is not None:
        step = twice(answer)
    return step


def stored(folder, run="r1"):
    return folder / "models" / "waits" / run / "model.coreg"


def test_the_fault_of_a_table_is_for_the_operator_and_the_coordinator_hears_that_there_is_one(
    agent, tmp_path
):
    write(tmp_path, TABLE.replace("0.5,", "half,", 1), "local.csv")
    for reason in (agent.workers.judge(plan("r1")).reason, refusal(agent, plan("r1"))):
        assert reason == "its data set 'patients' cannot be used; its operator can read the reason."
        assert "'half'" in (agent.workers.tables.fault_behind(reason) or "")
    assert agent.workers.tables.fault_behind("another reason") is None
    agent.workers.tables.only = "training"  # an agent of one run is started again: the run waits
    for each in (agent.workers.judge(plan("r1")), answers(agent, plan("r1"))[0]):
        assert (
            each.for_now
            is each.reason.endswith("The run waits: correct it, and start the agent again.")
            is True
        )
    agent.workers.tables.only = ""
    assert "'half'" in agent.workers.tables.troubles["patients"]
    assert "data_unusable" in agent.noticed
    assert {notice.private for notice in agent.notices if "half" in notice.text} == {True}, (
        "on a terminal, in no log"
    )
    write(tmp_path, TABLE, "local.csv")
    assert agent.workers.judge(plan("r1")).reason is None
    assert isinstance(answers(agent, plan("r1"))[0], Offer)
    assert agent.workers.tables.troubles == {}


def test_the_operator_hears_of_a_fault_before_a_run_needs_the_table(tmp_path):
    write(tmp_path, "id,a,b,y\nq1,1,2,3\nq2,2,x,4\nq3,2,1,\n", "bad.csv")
    write(
        tmp_path, "id,a,b,y\nq1,1,2,3\nq2,2,1,4\n", "unaligned.csv"
    )  # no row is shared yet: an alignment is next
    listed = {name: inputs(tmp_path / f"{name}.csv") for name in ("bad", "gone", "unaligned")}
    write(tmp_path, "id,a,b,waiting\nq1,1,2,3\nq2,2,1,\n", "studied.csv")
    listed["studied"] = inputs(tmp_path / "studied.csv", None)  # the study names the target
    listed["misspelt"] = inputs(tmp_path / "studied.csv", None, id="idd")
    agent = Agent(tmp_path, **listed)
    agent.workers.tables.read_all()
    assert set(agent.workers.tables.troubles) == {"bad", "gone", "misspelt"}
    assert "no column 'idd'" in agent.workers.tables.troubles["misspelt"], "no study can mend it"
    named = [n.fields["data"] for n in agent.notices if n.name == "columns_open"]
    assert named == ["studied"]
    asked = [n for n in agent.notices if "which is the column to predict?" in n.text]
    assert [notice.private for notice in asked] == [True], "its columns are in no log"
    assert "line 3, column 'b': 'x' is not a finite number" in agent.workers.tables.troubles["bad"]
    assert agent.noticed.count("data_unusable") == 3
    assert agent.noticed.count("data_read") == 1
    assert agent.workers.judge(plan("r1")).reason is None
    assert agent.noticed.count("data_read") == 1, "the run finds it read"
    agent.ledger.close()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"study": "a/b"}, "study"),
        ({"data": "staff"}, "this site has no data set 'staff'"),
        ({"objective": Scoring("t9", "agreement")}, "no model of run t9"),
    ],
)
def test_a_plan_that_this_site_cannot_serve_is_refused_before_the_operator_is_asked(
    tmp_path, changes, words
):
    agent = Agent(tmp_path, other=inputs(tmp_path / "local.csv"))
    asked = replace(plan("r1"), **changes)
    for reason in (agent.workers.judge(asked).reason, refusal(agent, asked)):
        assert words in reason
    agent.ledger.close()


def test_a_plan_that_the_ledger_forbids_is_refused_before_the_operator_is_asked(tmp_path):
    """With sealed sums, on instances that were summed with other sites."""
    agent = Agent(tmp_path, policy=Policy())
    try:
        sealed = replace(plan("r2"), privacy=Privacy(), membership=Membership(SITES, 3))
        assert agent.workers.judge(sealed).reason is None
        about = agent.workers.judge(sealed).about
        assert (
            "encrypted: the members of the run read the sums over 3 or more sites"
            in about["leaves this machine"]
        )
        data = agent.data_sets.get("patients")[0].data
        agent.ledger.memory.know_as(data.ids_digest, data.instances)
        agent.ledger.record(offer(ids=data.ids_digest))
        agent.ledger.record(answer(), told(("east", "north", "south")))
        assert "this site was summed with east, north, south" in (
            agent.workers.judge(sealed).reason or ""
        )
        fewer = replace(sealed, membership=Membership(SITES, 2))
        assert agent.workers.judge(fewer).reason is None, "its roster decides"
    finally:
        agent.ledger.close()


def test_an_answer_that_nobody_listened_to_is_recorded_with_what_it_tells_once_it_is_sent(agent):
    assert answers(agent, plan("r1"), listening=False) == []
    assert list(read_ledger(agent.ledger.path)) == []
    [offer] = answers(agent, plan("r1"))
    assert answers(agent, first_step(offer), listening=False) == []
    assert answers(agent, plan("r1")) == [offer], (
        "in a new session of the same process the attempt goes on"
    )
    [answer] = answers(agent, first_step(offer))
    line = list(read_ledger(agent.ledger.path))[-1]
    assert line["kind"] == "Answer"
    assert line["question"] == "sizes"
    assert line["sha256"] == answer.summed.digest
    assert agent.ledger.memory.answered(plan("r1"), offer.ids_digest) == 1
    assert answers(agent, first_step(offer)) == [answer], (
        "it is sent once more, as after a session that broke"
    )
    assert agent.ledger.memory.answered(plan("r1"), offer.ids_digest) == 1, "and tells nothing new"


def test_the_sites_secret_keys_the_digest_of_the_ids(tmp_path):
    digests = []
    secret = "a secret of the sites"
    for each in (None, secret):
        agent = Agent(tmp_path, policy=Policy(aggregation="plaintext", ids_secret=each))
        digests.append(answers(agent, plan("r1"))[0].ids_digest)
        agent.ledger.close()
    assert digests[1] == keyed(digests[0], secret)


# --- results --------------------------------------------------------------------------------------


def test_the_result_is_on_the_disk_before_the_last_answer_leaves(agent, tmp_path, monkeypatch):
    record = agent.ledger.record
    there = []

    def recorded(message, *about):
        there.append(stored(tmp_path).exists())
        return record(message, *about)

    monkeypatch.setattr(agent.ledger, "record", recorded)
    step = last_step(agent, answers(agent, plan("r1"))[0])
    assert there.pop()
    assert not any(there)
    [again], report = worked(agent, step)
    assert again.report.outcome == "CONVERGED"
    [fetched], report = worked(agent, Finished("r1", Outcome.CONVERGED, ""))
    assert isinstance(fetched, Fetched)
    assert report.models == 2, "the joined one and the local one"
    assert agent.workers.written[0] == stored(tmp_path)


def test_rows_can_change_before_a_run_is_answered_and_not_after(tmp_path):
    """Two attempts with other rows would be two equations."""
    changed = TABLE.replace("0.5,", "0.75,", 1)

    def process(table):
        made = Agent(tmp_path)
        write(tmp_path, table, "local.csv")
        return made

    offers = []
    for table in (TABLE, changed):
        agent = process(table)
        offers.extend(answers(agent, plan("r1")))
        if table is changed:
            answers(agent, first_step(offers[-1]))
        agent.ledger.close()
    assert offers[0].data_digest != offers[1].data_digest
    agent = process(TABLE)
    words = "rows or their preprocessing have changed since it answered in run r1"
    assert words in refusal(agent, Proposal("r1", 1, plan("r1")))
    assert isinstance(answers(agent, plan("r2"))[0], Offer), "another run can have other rows"
    agent.ledger.close()
    agent = process(changed)
    [offer] = answers(agent, Proposal("r1", 1, plan("r1")))
    assert offer.data_digest == offers[1].data_digest
    agent.ledger.close()


# --- scoring --------------------------------------------------------------------------------------


class AsSite:
    """A worker of this agent, as one of the sites of a `Pump`."""

    def __init__(self, agent):
        self.agent = agent
        self.result = None
        self.missed = ""

    def hello(self):
        return Hello("north", PROTOCOL_VERSION, "test")

    def handle(self, message):
        return answers(self.agent, message)


@pytest.fixture
def scored(tmp_path):
    """An agent that scored a table with the south, whose parts are 1, 2, 3 and 4, and its model."""
    text = "id,a,b\nn2,1,\nn1,0,1\nn4,2,2\nn3,,\n"
    table = inputs(write(tmp_path, text, "monday.csv"), None)
    in_use = KeysInUse(simulated_keys("north"), None)
    agent = Agent(tmp_path, policy=Policy(scores_of_two=True), in_use=in_use, monday=table)
    [path] = Stored("north", tmp_path / "models").put("t1")
    model = load_model(path)
    batch, _ = batch_of(model, table, b"another salt")
    parts = np.array([[1.0], [2.0], [3.0], [4.0]])
    south = replace(batch, features=parts, missing=np.zeros(4, dtype=bool))
    scoring = plan("s1", objective=Scoring("t1", "agreement"))
    scoring = replace(scoring, data="monday", privacy=Privacy())
    sites = {"north": AsSite(agent), "south": site_with("south", south)}
    pump = Pump(scoring, sites).join().run()
    assert pump.outcome == Outcome.CONVERGED
    assert pump.missed == {}
    yield agent, model, scoring
    agent.ledger.close()


def test_a_scoring_writes_the_scores_of_the_table_that_the_plan_names(scored, tmp_path):
    agent, model, _ = scored
    [path] = agent.workers.written
    assert path.relative_to(tmp_path).as_posix() == "models/waits/s1/scores.csv"
    _, *lines = path.read_text().splitlines()
    n1, n2, alone, n4 = [line.split(",") for line in lines]
    second, first, fourth, _ = model.predict(read_table(tmp_path / "monday.csv"))
    means = np.array([first + 1.0, second + 2.0, fourth + 4.0]) / 2
    scores = [float(score) for _, score, _ in (n1, n2, n4)]
    assert_allclose(scores, means, rtol=1e-9)
    assert [sites for *_, sites in (n1, n2, n4)] == ["north south"] * 3
    assert alone == ["n3", "", "south"], "one site alone: the score would be its part"


def test_the_questions_of_a_scoring_are_in_the_ledger_and_individuals_count_their_own_sites(
    scored,
):
    agent, _, scoring = scored
    entries = [entry for entry in read_ledger(agent.ledger.path) if "question" in entry]
    assert [entry["question"] for entry in entries] == ["keys", "records", "scores"]
    for entry in entries:
        assert entry["sent"] == "sealed"
        assert entry["participants"] == ["north", "south"]
    ids = agent.workers.tables.read(scoring).private.ids_digest
    assert agent.ledger.memory.summed_with(ids) == frozenset()


def test_a_model_of_another_site_scores_nothing(agent, tmp_path):
    [path] = Stored("north", tmp_path / "models").put("t1")
    save_model(path, replace(load_model(path), site="south"))
    assert "belongs to another site" in refusal(
        agent, plan("s1", objective=Scoring("t1", "agreement"))
    )


# --- alignments of ids ----------------------------------------------------------------------------

ALIGNS = replace(
    plan("r1"), privacy=Privacy(), membership=Membership(SITES, 3), align=Alignment(max_ids=50)
)


def aligned(agent, above, *others):
    """Carry out the alignment for a run, with south and west; their ids."""
    asked = alignment_of(above, 0)
    ids = {name: IdList(others, "no instance yet", name.encode()) for name in SITES[1:]}
    digest = agent.workers.tables.read(asked).private.ids_digest
    sites = {name: site_with(name, replace(own, ids_digest=digest)) for name, own in ids.items()}
    pump = Pump(asked, {"north": AsSite(agent), **sites}).join().run()
    assert pump.outcome == Outcome.CONVERGED
    assert pump.missed == {}


@pytest.fixture
def aligner(tmp_path):
    made = Agent(tmp_path, policy=Policy(), in_use=KeysInUse(simulated_keys("north"), None))
    yield made
    made.ledger.close()


def test_a_run_trains_on_the_ids_of_its_alignment_which_are_kept(aligner):
    """The next run has the ids too, and other rows need another alignment."""
    assert aligner.workers.judge(ALIGNS).reason is None
    said, report = worked(aligner, ALIGNS)
    assert said == [Unaligned("r1")]
    assert report.accepted
    aligned(aligner, ALIGNS, "p1", "p3", "q2")
    for run in ("r1", "r2"):
        [offer] = answers(aligner, replace(ALIGNS, run=run))
        assert offer.n_unlabelled == 3
    write(aligner.ledger.path.parent, TABLE + "q3,1,1,\n", "local.csv")
    assert answers(aligner, replace(ALIGNS, run="r3")) == [Unaligned("r3")]


def test_the_operator_reads_the_columns_and_what_an_alignment_tells(aligner):
    """Before any id leaves; the study can have chosen the columns."""
    about = aligner.workers.judge(replace(ALIGNS, objective=Additive())).about
    assert about["columns"].startswith(
        "predicts 'y'; individuals by 'id'; features of a, b; the alignment finds which of "
    )
    assert "each site learns which of its own ids all sites have" in about["alignment of ids"]
    assert "A member can align a list of all of them" in about["alignment of ids"], (
        "these ids can be guessed"
    )
    assert "from sums of products of the sites' columns" in about["method"]
    assert "ids leave only as points" in about["stays on this machine"]
    assert "alignment of ids" not in aligner.workers.judge(replace(ALIGNS, align=None)).about


def test_the_operator_reads_which_training_with_these_labels_it_is(aligner, monkeypatch):
    additive = replace(ALIGNS, objective=Additive())
    assert aligner.workers.judge(additive).about["labels"] == "training 1 of 3 with these labels"
    rows = replace(row_set(b"secret", [b"p1"], {}, [b"own"]), features=18)
    memory = aligner.ledger.memory
    memory.note_disclosure("r0", Disclosure("sums", ALIGNS.sites, rows=rows, opens=True))
    assert aligner.workers.judge(additive).about["labels"] == (
        "training 2 of 3 with these labels, if the alignment finds the same labels. The labelled"
        " rows have to be those of the earlier training, or differ from them in at least 180"
    )
    aligned(aligner, ALIGNS, "p1", "p3", "q2")
    again = aligner.workers.judge(replace(additive, run="r2")).about
    assert again["labels"] == "training 1 of 3 with these labels", "those of other rows count apart"
    monkeypatch.setattr(memory, "trainings", lambda _data: 3)
    spent = aligner.workers.judge(replace(additive, run="r3")).about
    assert spent["labels"].startswith("all 3 trainings with these labels are used, so the run ends")


def test_the_operator_reads_how_many_individuals_of_an_earlier_training_are_gone(aligner):
    """One patient withdrew: the run would end refused after it had told who has labels."""
    aligned(aligner, ALIGNS, "p1", "p3", "q2")
    additive = replace(ALIGNS, objective=Additive())
    data = aligner.workers.tables.read(additive).private
    names = [name.encode() for name in (*data.ids, *data.row_keys, "withdrawn")]
    earlier = row_set(secret_of(data.salt, b"rows"), names, {}, [b"own"] * len(names))
    rows = replace(earlier, features=18)
    disclosed = Disclosure("sums", ALIGNS.sites, rows=rows, opens=True)
    aligner.ledger.memory.note_disclosure("r0", disclosed)
    about = aligner.workers.judge(additive).about
    assert about["labels"].endswith(
        "differ from them in at least 180. Some rows of that training are not among those of this"
        " run: it ends refused unless 179 more rows differ, here or at other sites"
    )


def test_a_training_tells_what_check_asks_about(tmp_path):
    """An agent trained without a word on a column that only labelled rows have."""
    lines = [f"p{i},{i % 2},{3 * i},{i if i < 9 else ''}" for i in range(12)]
    rows = "\n".join(line if i < 9 else f"p{i},,{3 * i}," for i, line in enumerate(lines))
    table = inputs(write(tmp_path, f"id,y,a,outcome\n{rows}\n", "told.csv"))
    agent = Agent(tmp_path, told=table)
    training = replace(plan("r", objective=Additive(task="regression")), data="told")
    agent.workers.judge(training)
    agent.ledger.close()
    told = " ".join(notice.text for notice in agent.notices)
    assert "column 'outcome': it is filled exactly where the target 'y' is" in told
    assert 'every label is 0 or 1, and the study has not task = "classification"' in told


def test_a_yes_no_target_in_a_regression_is_told_before_ids_are_compared(tmp_path):
    yes_no = Agent(
        tmp_path,
        policy=Policy(),
        in_use=KeysInUse(simulated_keys("north"), None),
        more=inputs(tmp_path / "local.csv", positive="1"),
    )
    asked = replace(ALIGNS, objective=Additive(), data="more")
    assert "the plan's task is regression" in yes_no.workers.judge(asked).reason
    assert (
        yes_no.workers.judge(replace(asked, objective=Additive(task="classification"))).reason
        is None
    )
    yes_no.ledger.close()


def test_the_ledger_knows_the_same_ids_by_whatever_name_the_coordinator_aligns_them(aligner):
    read = aligner.workers.tables.read
    names = set()
    for changes in ({}, {"federation": "another"}, {"align": Alignment(max_ids=50, ids="exact")}):
        asked = alignment_of(replace(ALIGNS, **changes), 0)
        names.add(read(asked).private.instances)
    assert len(names) == 1


def test_an_agent_of_one_run_refuses_a_plan_of_another_kind_before_it_reads_the_table(agent):
    for kind, other in (
        ("scoring", plan("r1")),
        ("training", plan("s1", objective=Scoring("t1", "agreement"))),
    ):
        agent.workers.tables.only = kind
        assert f"this agent was started for {kind}" in refusal(agent, other)


def test_a_run_that_ends_before_its_ids_are_aligned_is_over_and_a_step_of_it_is_refused(aligner):
    answers(aligner, ALIGNS)
    [refused], report = worked(aligner, Step("r1", 0, 0))
    assert "a step before the ids of this site were aligned" in report.reason
    assert refused.reason == report.reason
    assert report.accepted is False
    [fetched], report = worked(aligner, Finished("r1", Outcome.REFUSED, "south refused"))
    assert isinstance(fetched, Fetched)
    assert report.accepted is None
    assert report.models == 0


def test_a_defect_ends_the_run_here_and_never_the_service(agent, monkeypatch):
    """Whatever a message causes: the coordinator hears that there is a fault, and no cell of
    a row.
    """

    def fails(*_):
        raise ZeroDivisionError("12.5 of patient p17")

    [offer] = answers(agent, plan("r1"))
    monkeypatch.setattr(AgreementComputation, "ask", fails)
    [refused] = answers(agent, first_step(offer))
    assert refused == PlanRefused(
        "r1",
        "an unexpected error here (ZeroDivisionError), which its operator finds in the agent's"
        " log.",
    )
    [told] = [notice for notice in agent.notices if notice.name == "defect"]
    assert "ZeroDivisionError at " in told.text
    assert "test_workers.py:" in told.text
    assert "12.5" not in str(told)
    monkeypatch.undo()
    assert isinstance(answers(agent, plan("r2"))[0], Offer)


def test_a_site_without_labels_predicts_the_target_of_the_study(tmp_path):
    """Its table names none, so the model would be of "" and its predictions too."""
    table = write(tmp_path, "id,a\np,1\nq,2\n", "bare.csv")
    bare = inputs(table, target=None, labels=False)
    agent = Agent(tmp_path, bare=bare)
    study = replace(plan("r"), data="bare", target="waiting_time")
    assert agent.workers.tables.target(study) == "waiting_time"
    assert agent.workers.tables.target(replace(study, data="patients")) == "y"
    agent.ledger.close()
