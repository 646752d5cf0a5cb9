"""The members of a study: the eight words of their keys, what confirms them, and what is
refused.
"""

from dataclasses import replace

import pytest
from agent_home import Agent, until
from ledger_home import Home
from test_agent_daemon import hears
from test_model_store import plan as plan_of

from coreg_core.errors import StorageError
from coreg_core.messages import Dismissed, Offer, PlanRefused, Proposal
from coreg_core.outcomes import Outcome
from coreg_core.terms import Membership, Privacy
from coreg_wire.identity.invitation import eight_words, same_words
from coreg_wire.identity.names import key_fingerprint
from coreg_wire.identity.signatures import private_key
from site_agent.consent.policy import Policy
from site_agent.identity.members import FILE, OTHERS, Members
from site_agent.service.console import Terminal
from site_agent.service.identity_in_use import KeysInUse
from site_agent.service.state_store import Decision

AUTHORITY = "a" * 64
KEYS = {"north": "1" * 64, "south": "2" * 64}
PLAN = replace(
    plan_of("r1"), privacy=Privacy(), membership=Membership(("north", "south", "west"), 3)
)
SOUTH = "2" * 64
WEST = "3" * 64
OTHER = "4" * 64


def proposed(south=SOUTH, west=WEST, north="?", plan=PLAN):
    return Proposal(plan.run, 0, plan, keys=(north, south, west))


@pytest.fixture
def site(tmp_path):
    return Home(tmp_path / "home").identity()


# --- words ----------------------------------------------------------------------------------------


def test_the_words_are_the_same_in_every_release_and_in_any_order():
    """Agents of two releases show the same words, and their operators compare them."""
    words = eight_words(AUTHORITY, KEYS)
    assert words == "havak rizor lulof zagor zukug vijop kitaj duvug"
    assert eight_words(AUTHORITY, dict(reversed(KEYS.items()))) == words


def test_every_part_changes_the_words():
    swapped = dict(zip(KEYS, reversed(KEYS.values()), strict=True))
    renamed = {"n": KEYS["north"]}
    others = [("b" * 64, KEYS)]
    others += [
        (AUTHORITY, keys)
        for keys in (KEYS | {"south": OTHER}, KEYS | {"west": WEST}, swapped, renamed)
    ]
    words = [{*eight_words(*each).split()} for each in [(AUTHORITY, KEYS), *others]]
    assert len(set.union(*words)) == 8 * len(words)


@pytest.mark.parametrize(
    "written",
    [
        "lusab babad",
        " LUSAB-babad ",
        "lusab, babad.",
        '"Lusab" “babad”',
        "lusab – babad",
        "1. lusab\n2) babad",
        "lusab\u00a0/\u00a0babad;",
    ],
)
def test_only_the_letters_of_words_count_and_not_their_case(written):
    assert same_words(written, "lusab babad")


@pytest.mark.parametrize("written", ["lusab", "babad lusab", "lusab babat", "lu sab babad", ""])
def test_other_words_stay_other_words(written):
    assert not same_words(written, "lusab babad")


# --- what confirms them ---------------------------------------------------------------------------


def test_the_coordinator_cannot_replace_this_sites_own_key(site):
    members = Members(site)
    keys = members.keys_of(proposed(north=OTHER))
    assert keys == {
        "north": key_fingerprint(private_key(site.key_pem).public_key()),
        "south": SOUTH,
        "west": WEST,
    }
    assert members.keys_of(proposed(west="")).keys() == {"north", "south"}, "west has not enrolled"
    assert members.keys_of(replace(proposed(), keys=())) == {}


def test_new_and_changed_members_are_named_and_not_settled(site):
    members = Members(site)
    assert members.news(members.keys_of(proposed(west=""))) == "south is new"
    assert members.news(members.keys_of(proposed())) == "south, west are new"
    assert not members.settled(members.keys_of(proposed()))
    members.confirm(members.keys_of(proposed(west="")))
    assert members.settled(members.keys_of(proposed(west="")))
    assert members.settled(members.keys_of(replace(proposed(), keys=()))), "no key is shown"
    for shown, news in (
        (proposed(), "west is new"),
        (proposed(OTHER, ""), "another key than before: south"),
    ):
        assert members.news(members.keys_of(shown)) == news
        assert not members.settled(members.keys_of(shown))
    assert (
        members.news(members.keys_of(proposed(OTHER)))
        == "west is new; another key than before: south"
    )
    (site.directory / FILE).write_text("[")
    with pytest.raises(
        StorageError, match=r"cannot be read .*Delete it: the agent asks for the eight words again"
    ):
        Members(site)


def test_words_that_were_written_down_confirm_these_keys_for_later_processes(site):
    keys = Members(site).keys_of(proposed())
    words = Members(site).words(keys)
    assert not Members(site, "another word").settled(keys)
    assert Members(site, "another word").news(keys) == f"south, west are new; {OTHERS}"
    assert Members(site, words.upper().replace(" ", "-")).settled(keys)
    assert Members(site).settled(keys)
    assert (site.directory / FILE).stat().st_mode & 0o777 == 0o600
    assert not Members(site, words).settled(Members(site).keys_of(proposed(OTHER))), (
        "the words of other keys"
    )


def test_words_taken_unseen_hold_in_this_process_alone(site):
    members = Members(site, accept=True)
    keys = members.keys_of(proposed())
    assert members.settled(keys)
    assert members.unseen == keys
    assert members.key_of("south") == SOUTH
    assert not Members(site).settled(keys)
    known = Members(site)
    known.confirm(keys)
    assert Members(site, accept=True).settled(keys)


# --- the agent ------------------------------------------------------------------------------------


def agent_of(tmp_path, site, *, written="", **options):
    members = Members(site, written)
    in_use = KeysInUse(members.run_keys(), members)
    return Agent(tmp_path, policy=Policy(), in_use=in_use, **options)


def test_a_plan_with_unconfirmed_words_waits_for_the_operator_and_its_approval_confirms_them(
    tmp_path, site
):
    agent = agent_of(tmp_path, site)

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(proposed())
        await until(agent.state.pending)
        [entry] = agent.state.pending()
        keys = agent.daemon.approvals.members.keys_of(proposed())
        assert entry["words"] == agent.daemon.approvals.members.words(keys)
        assert f"{entry['words']} (south, west are new)" in entry["about"]["eight words"]
        agent.state.record_decision(*agent.state.pending_run("r1"), Decision(True, ""))
        assert isinstance(await hears(line), Offer)
        assert Members(site).settled(keys)
        line.says(proposed(plan=replace(PLAN, run="r2")))
        assert isinstance(await hears(line), Offer), "once"
        line.says(proposed(OTHER, plan=replace(PLAN, run="r3")))
        await until(agent.state.pending)
        assert "another key than before: south" in agent.state.pending()[0]["about"]["eight words"]

    agent.against(conversation)


def test_an_approval_confirms_the_words_that_were_shown_and_no_others(tmp_path, site):
    """The coordinator shows the operator the real keys, and other ones before the answer."""
    agent = agent_of(tmp_path, site)

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(proposed())
        await until(agent.state.pending)
        line.says(proposed(OTHER))
        await until(lambda: agent.daemon.agent.runs["r1"].proposal.keys[1] == OTHER)
        agent.state.record_decision(*agent.state.pending_run("r1"), Decision(True, ""))
        refused = await hears(line)
        assert isinstance(refused, PlanRefused)
        assert (
            refused.reason
            == "its plan or the keys of its members changed after its operator was asked."
        )

    agent.against(conversation)
    assert Members(site).key_of("south") is None


@pytest.mark.parametrize("other", [{"keys": OTHER}, {"max_rounds": 9_999}])
def test_the_name_of_a_run_stands_for_one_plan_and_one_set_of_keys(tmp_path, site, other):
    """The coordinator dismisses the run while the operator is on the telephone, and proposes
    another one by its name.
    """
    agent = agent_of(tmp_path, site, approval=True)
    changed = proposed()
    if "keys" in other:
        changed = proposed(other["keys"])
    if "max_rounds" in other:
        iteration = replace(changed.plan.iteration, max_rounds=other["max_rounds"])
        changed = replace(changed, plan=replace(changed.plan, iteration=iteration))

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(proposed())
        await until(agent.state.pending)
        line.says(Dismissed("r1", Outcome.REFUSED, "for now"))
        await until(lambda: not agent.daemon.agent.runs)
        line.says(changed)
        refused = await hears(line)
        assert isinstance(refused, PlanRefused)
        assert (
            refused.reason
            == "its plan or the keys of its members changed after its operator was asked."
        )

    agent.against(conversation)
    assert Members(site).key_of("south") is None


def test_a_replaced_key_comes_back_by_no_words_of_a_file_and_no_key_unseen(site):
    members = Members(site)
    old = proposed()
    members.confirm(members.keys_of(old))
    words = members.words(members.keys_of(old))
    members.confirm(members.keys_of(proposed(OTHER)))
    assert not Members(site, words).settled(members.keys_of(old))
    assert not Members(site, accept=True).settled(members.keys_of(old))
    assert Members(site).key_of("south") == OTHER


class Answers:
    """In place of the operator of an agent of one run."""

    def __init__(self, *answers):
        self.asked = []
        self._answers = list(answers)

    async def decide(self, plan, about, words, news):
        self.asked.append((words, news))
        return self._answers.pop(0)


@pytest.mark.parametrize("shown", [True, False])
def test_an_agent_of_one_run_asks_for_the_words_and_takes_no_others(tmp_path, site, shown):
    words = Members(site).words(Members(site).keys_of(proposed()))
    answer = Decision(True, "", "")
    expected = PlanRefused
    if shown:
        answer = Decision(True, "", words)
        expected = Offer
    asked = Answers(answer)
    agent = agent_of(tmp_path, site, mode="once", asked=asked)

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(proposed())
        assert isinstance(await hears(line), expected)

    agent.against(conversation)
    assert asked.asked == [(words, "south, west are new")]
    assert Members(site).settled(Members(site).keys_of(proposed())) is shown


def test_other_words_are_refused_at_the_coordinator(tmp_path, site):
    """The other sites hear that the words differ; an agent that only ends tells them nothing."""
    agent = agent_of(
        tmp_path, site, written="another word", mode="once", asked=Terminal(consents=False)
    )

    async def conversation(coordinator):
        line = await coordinator.session()
        line.says(proposed())
        refused = await hears(line)
        assert isinstance(refused, PlanRefused)
        assert "the eight words that its operator gave are not those" in refused.reason
        words = agent.daemon.approvals.members.words(Members(site).keys_of(proposed()))
        assert not {*words.split()} & {*refused.reason.split()}, "the coordinator learns no word"

    agent.against(conversation)
    assert Members(site).key_of("south") is None
