"""Alignment of ids through the real machines: the shared ids and nothing else; kills; and what a liar or a listener gets."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine.tiny import Pump, all_restarted, restarted, site_with

from coreg_core.computation.alignment import BLOCK, CANARIES, SIZES, AlignmentComputation, most_answers, size_class
from coreg_core.protocol import messages as m
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Alignment, Membership, Plan, Privacy, plan_fault
from coreg_core.protocol.words import Words
from site_agent.alignment.curve import multiplied, points_of
from site_agent.machine.alignment import AlignmentJob, IdList
from site_agent.machine.site import Site

IDS = {
    "a": ("ann", "bob", "cid", "dot", "eve"),
    "b": ("bob", "cid", "dot", "eve", "fay", "gus"),
    "c": ("bob", "cid", "eve", "hal"),
    "d": ("bob", "eve", "ivy"),
}


def plan_of(sites: str = "abc", **changes: Any) -> Plan:
    terms = replace(Alignment(max_ids=200), **changes)
    return Plan("align-1", "tiny", Membership(tuple(sites), len(sites)), terms, privacy=Privacy())


def id_list(name: str, ids: tuple[str, ...] | None = None) -> IdList:
    return IdList(IDS[name] if ids is None else ids, "no instance yet", name.encode())


def sites_of(sites: str = "abc", **ids: tuple[str, ...]) -> dict[str, Site]:
    return {name: site_with(name, id_list(name, ids.get(name))) for name in sites}


def aligned(pump: Pump) -> Mapping[str, Any]:
    return {name: site.result and site.result.aligned for name, site in pump.sites.items()}


@pytest.mark.parametrize("sites", ["ab", "abc", "abcd"])
def test_every_site_learns_which_of_its_ids_all_have_and_how_many_have_the_others(sites: str) -> None:
    pump = Pump(plan_of(sites), sites_of(sites)).join().run()
    assert pump.outcome is Outcome.CONVERGED, pump.end
    everywhere = set.intersection(*(set(IDS[name]) for name in sites))
    assert f"{len(everywhere)} ids are known to all {len(sites)} sites" in pump.end.reason
    for name, found in aligned(pump).items():
        assert found.ids == tuple(sorted(everywhere))
        times = [sum(text in IDS[other] for other in sites) for text in IDS[name]]
        assert found.known_to == tuple((k, sum(t >= k for t in times)) for k in range(2, len(sites) + 1))


def test_no_id_in_common_is_an_outcome_of_its_own() -> None:
    pump = Pump(plan_of(), sites_of(c=("zoe",))).join().run()
    assert pump.outcome is Outcome.NOTHING_SHARED
    assert all(found is None for found in aligned(pump).values())


def test_lists_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("coreg_core.computation.alignment", "site_agent.machine.alignment"):
        monkeypatch.setattr(f"{module}.BLOCK", 50)
    pump = Pump(plan_of(), sites_of()).join().run()
    assert pump.outcome is Outcome.CONVERGED, pump.end
    assert aligned(pump)["c"].ids == ("bob", "cid", "eve")


@pytest.mark.parametrize("records", [4, 9, 14, 19])
def test_a_run_that_is_killed_and_resumed_has_the_same_result(records: int) -> None:
    whole = Pump(plan_of(), sites_of()).join().run()
    first = Pump(plan_of(), sites_of(), kill_after=records).join().run()
    again = Pump(plan_of(), all_restarted(first.sites), first.records).join().run()
    assert again.outcome is Outcome.CONVERGED, again.end
    assert aligned(again) == aligned(whole)


def test_a_resumed_site_sends_the_same_bytes_and_other_sites_get_other_secrets() -> None:
    job = AlignmentJob(plan_of(), Alignment(), "a", id_list("a"))
    seen = []
    for sites, key in ((("a", "b"), b"k"), (("a", "b"), b"k"), (("a", "c"), b"k"), (("a", "b"), b"other")):
        job.begin(sites, key)
        seen.append((job._exponents, job._secret(b"order")))
    assert seen[0] == seen[1]
    assert len({repr(each) for each in seen}) == 3


# --- liars --------------------------------------------------------------------------------------------------------


class Liar(AlignmentJob):
    """Changes the points of the lists that it passes on."""

    change: Callable[[Any], Any]

    def _received(self, question: Any) -> Any:
        points = super()._received(question)
        return points if question.stage == "take" else self.change(points)


@pytest.mark.parametrize(
    "change",
    [
        lambda points: points[::-1].copy(),  # another order
        lambda points: np.repeat(points[:1], len(points), axis=0),  # one point for all
        lambda points: points_of([str(i) for i in range(len(points))], "align-1"),  # other ids
    ],
    ids=["reordered", "repeated", "replaced"],
)
def test_a_site_that_changes_other_lists_ends_the_job(change: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    liar = type("Changing", (Liar,), {"change": staticmethod(change)})
    honest = Site._job_of
    monkeypatch.setattr(
        Site,
        "_job_of",
        lambda site, plan: liar(plan, plan.objective, "b", site._data) if site.name == "b" else honest(site, plan),
    )
    pump = Pump(plan_of(), sites_of()).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert "canaries" in pump.end.reason
    assert all(found is None for found in aligned(pump).values())


def test_a_small_part_of_a_list_is_changed_unnoticed_only_where_no_canary_is() -> None:
    """One point of 128 is a canary's with probability a half: the bound 1 − (1 − g)^64 of docs/concepts/threat-model.md."""
    job = AlignmentJob(plan_of(), Alignment(), "a", id_list("a"))
    job.begin(("a", "b", "c"), b"key")
    size = SIZES[size_class(len(IDS["a"]))]
    canaries = sum(text.startswith("c") for text in job._padded(size))
    assert (size, canaries) == (128, CANARIES)


@pytest.mark.parametrize("step", [4, 7, 12])
def test_words_that_the_coordinator_changes_end_the_run(step: int) -> None:
    def wire(_site: str, message: m.ToSite) -> m.ToSite:
        if isinstance(message, m.Step) and message.step == step and message.words is not None:
            values = message.words.values.copy()
            values[0] ^= np.uint64(1)
            return replace(message, words=Words(values))
        return message

    pump = Pump(plan_of(), sites_of(), wire=wire).join().run()
    assert pump.outcome is Outcome.SITE_FAULT
    assert all(site.result is None or site.result.aligned is None for site in pump.sites.values())


# --- listeners ----------------------------------------------------------------------------------------------------


def heard_by(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], dict[str, AlignmentJob]]:
    """The points that one site opened, with whose they were, and all jobs, for negative controls."""
    heard, jobs, honest = [], dict[str, AlignmentJob](), AlignmentJob._received

    def listening(job: AlignmentJob, question: Any) -> Any:
        jobs[job.name] = job
        points = honest(job, question)
        if job.name == name and question.stage == "pass":
            heard.append((job._sites[question.place[0]], points))
        return points

    monkeypatch.setattr(AlignmentJob, "_received", listening)
    assert Pump(plan_of(), sites_of()).join().run().outcome is Outcome.CONVERGED
    return heard, jobs


def test_a_site_with_a_dictionary_finds_no_id_of_another_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the coordinator's help a site has all ciphertexts, its own keys and exponents, and the points that it passed."""
    heard, jobs = heard_by("b", monkeypatch)
    assert [owner for owner, _ in heard] == ["a", "c"]
    guesses = points_of([f"i{text}" for text in IDS["a"]], "align-1")
    own = jobs["b"]._exponents
    tried = [guesses, *(multiplied(guesses, e) for e in (own.start, own.passing, own.end))]
    for owner, points in heard:
        known = {point.tobytes() for point in points}
        assert not any(point.tobytes() in known for each in tried for point in each), "a guess is confirmed"
        # The negative control: with the owner's and the earlier sites' exponents every guess is confirmed.
        if owner == "a":
            opened = {point.tobytes() for point in multiplied(guesses, jobs["a"]._exponents.start)}
            assert opened <= known


def test_two_sites_together_need_the_third_ones_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    """b and c collude against a: final points hold a's exponent, and a's list starts under another one."""
    heard, jobs = heard_by("c", monkeypatch)
    guesses = points_of([f"i{text}" for text in IDS["a"]], "align-1")
    both = multiplied(multiplied(guesses, jobs["b"]._exponents.passing), jobs["c"]._exponents.passing)
    [points] = [points for owner, points in heard if owner == "a"]
    assert not {p.tobytes() for p in both} & {p.tobytes() for p in points}
    final = multiplied(both, jobs["a"]._exponents.passing)  # the negative control
    assert {p.tobytes() for p in final} <= {p.tobytes() for block in jobs["a"]._final.values() for p in block}


def test_an_id_that_is_inserted_is_tested_and_the_plan_bounds_how_many() -> None:
    """Inherent in any alignment: a site that lists an id learns whether all others have it."""
    pump = Pump(plan_of(), sites_of(a=("dot", "eve", "hal"))).join().run()
    assert aligned(pump)["a"].ids == ("eve",)
    refused = Pump(plan_of(max_ids=5), sites_of()).join().run()
    assert refused.outcome is Outcome.REFUSED
    assert "more ids than the plan's max_ids=5" in refused.end.reason


def test_plans_that_cannot_be_aligned() -> None:
    clear = replace(plan_of(), privacy=Privacy(aggregation="plaintext"))
    assert "an alignment needs sealed sums" in str(plan_fault(clear))
    assert "an alignment needs every site" in str(
        plan_fault(replace(plan_of(), membership=Membership(tuple("abc"), 2)))
    )


def test_the_answers_of_a_site_are_as_many_as_its_limit_says() -> None:
    sites = sites_of()
    Pump(plan_of(), sites).join().run()
    most = most_answers(200, 3)
    assert max(site._answered for site in sites.values()) <= most
    assert most_answers(100_000, 5) < 60
    assert len({AlignmentComputation(Alignment(), 3).start().step, BLOCK}) == 2
    assert restarted(sites["a"])._remembered.answered <= most
