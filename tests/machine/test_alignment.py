"""Alignment of ids through the real machines: the shared ids and nothing else; kills; and what a
liar or a listener gets.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine.tiny import Pump, TinySite, site_with

from coreg_core.objectives.alignment import Alignment
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan, plan_fault
from coreg_core.terms import Membership, Privacy
from site_agent.id_points import exponents, multiplied, points_of
from site_agent.machine import computations
from site_agent.machine.alignment import AlignmentComputation, IdList, size_class
from site_agent.machine.results import AlignmentResult
from site_agent.machine.site import each_by_itself

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
    if ids is None:
        ids = IDS[name]
    return IdList(ids, "no instance yet", name.encode())


def sites_of(sites: str = "abc", **ids: tuple[str, ...]) -> dict[str, TinySite]:
    return {name: site_with(name, id_list(name, ids.get(name))) for name in sites}


def aligned(pump: Pump) -> Mapping[str, Any]:
    """The results of sites whose alignment found shared ids."""
    results = {}
    for name, site in pump.sites.items():
        results[name] = None
        if isinstance(site.result, AlignmentResult) and site.result.ids:
            results[name] = site.result
    return results


@pytest.mark.parametrize("sites", ["ab", "abc", "abcd"])
def test_every_site_learns_which_of_its_ids_all_have_and_how_many_have_the_others(
    sites: str,
) -> None:
    pump = Pump(plan_of(sites), sites_of(sites)).join()
    portions = [0.0]
    while pump.end is None:
        pump.step()
        of_a = pump.sites["a"].computation
        begun = of_a is not None and hasattr(of_a, "sites")
        portions.append(of_a.news("r").fields["portion"] if begun else portions[-1])
    assert portions == sorted(portions)
    assert portions[-1] == 1.0
    assert pump.outcome is Outcome.CONVERGED, pump.end
    everywhere = set.intersection(*(set(IDS[name]) for name in sites))
    assert pump.end.reason == "every site has its list of shared ids", (
        "the coordinator is not told how many"
    )
    for name, found in aligned(pump).items():
        assert found.ids == tuple(sorted(everywhere))
        times = [sum(text in IDS[other] for other in sites) for text in IDS[name]]
        assert found.known_to == tuple(
            (k, sum(t >= k for t in times)) for k in range(2, len(sites) + 1)
        )


def test_no_id_in_common_is_an_outcome_of_its_own() -> None:
    pump = Pump(plan_of(), sites_of(c=("zoe",))).join().run()
    assert pump.outcome is Outcome.NOTHING_SHARED
    assert all(found is None for found in aligned(pump).values())


def test_lists_of_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_agent.machine.alignment.BLOCK", 50)
    pump = Pump(plan_of(), sites_of()).join().run()
    assert pump.outcome is Outcome.CONVERGED, pump.end
    assert aligned(pump)["c"].ids == ("bob", "cid", "eve")


def test_every_attempt_and_every_set_of_sites_has_other_secrets() -> None:
    computation = AlignmentComputation(plan_of(), Alignment(), "a", id_list("a"))
    seen = []
    for sites, key in (
        (("a", "b"), b"k"),
        (("a", "b"), b"k"),
        (("a", "c"), b"k"),
        (("a", "b"), b"other"),
    ):
        computation.begin(sites, key, b"", each_by_itself)
        seen.append((computation.exponents, computation.secret(b"order")))
    assert seen[0] == seen[1], "within an attempt a repeated step gets the same bytes"
    assert len({repr(each) for each in seen}) == 3


# --- liars and listeners --------------------------------------------------------------------------


def copied(points: Any) -> Any:
    """A point that is copied would be counted more often, and tell its owner by name."""
    out = points.copy()
    out[0] = out[-1]
    return out


def passes_on(change: Callable[[Any], Any]) -> type[AlignmentComputation]:
    """Changes the points of the lists that it passes on."""

    def passed(computation: AlignmentComputation, place: Any) -> Any:
        points = AlignmentComputation.passed(computation, place)
        if place.hop:
            return change(points)
        return points

    return type("Liar", (AlignmentComputation,), {"passed": passed})


def states(change: Callable[[Any], None]) -> type[AlignmentComputation]:
    """Adds to what all sites state of their sizes."""

    def answer(computation: AlignmentComputation, question: Any, chain: bytes) -> Any:
        reply = AlignmentComputation.answer(computation, question, chain)
        if question.kind == "list sizes":
            change(reply.summed)
        return reply

    return type("Adder", (AlignmentComputation,), {"answer": answer})


def changed_class(words: Any) -> None:
    at = size_class(5)  # of all sites
    words[at : at + 2] += np.array([-3, 3]).view(np.uint64)


def too_large(words: Any) -> None:
    words[size_class(5)] = 0
    words[-1] = 1


class Tagger(AlignmentComputation):
    """Multiplies each owner's list by an exponent of its own, and tells lists apart by it.

    It forges the counts of canaries.
    """

    def take_pass(self, place: Any, to_me: Any) -> None:
        honest = self.exponents
        if place.hop < len(self.sites) - 1:
            tag = exponents(b"tag" + bytes([place.owner])).passing
            self.exponents = replace(honest, passing=tag)
        try:
            super().take_pass(place, to_me)
        finally:
            self.exponents = honest

    def answer(self, question: Any, chain: bytes) -> Any:
        reply = super().answer(question, chain)
        if question.kind == "tally":
            return replace(reply, summed=0 * reply.summed)
        return reply


class Double(AlignmentComputation):
    """Counts more sites than there are."""

    def answer(self, question: Any, chain: bytes) -> Any:
        reply = super().answer(question, chain)
        if question.kind == "tally":
            return replace(reply, summed=np.uint64(2) * reply.summed)
        return reply


SIZES = "changed what this site stated|does not allow"
# With counts a site that tags each list would learn which named site has each of its ids: the run
# ends before they are known.
LIARS: dict[str, tuple[type[AlignmentComputation], str, str]] = {
    "another order": (passes_on(lambda points: points[::-1].copy()), "b", "canaries"),
    "other ids": (
        passes_on(lambda p: points_of([str(i) for i in range(len(p))], "align-1")),
        "b",
        "canaries",
    ),
    "a point twice": (passes_on(copied), "b", "repeated points|canaries"),
    "tags": (Tagger, "b", "canaries"),
    "tags, last of four": (Tagger, "d", "canaries"),
    "the size of all lists": (states(changed_class), "b", SIZES),
    "a list that the plan does not allow": (states(too_large), "b", SIZES),
    "double counts": (Double, "b", "counted an id more than once"),
}


@pytest.mark.parametrize("what", LIARS)
def test_a_site_that_lies_ends_the_run_before_a_count_is_known(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    liar, name, words = LIARS[what]
    sites = "abc"
    if name == "d":
        sites = "abcd"

    def computation_of(plan: Plan, terms: Any, site: str, data: Any, *drivers: Any) -> Any:
        if site == name:
            return liar(plan, terms, site, data, *drivers)
        return AlignmentComputation(plan, terms, site, data, *drivers)

    monkeypatch.setitem(computations.COMPUTATIONS, "alignment", computation_of)
    pump = Pump(plan_of(sites), sites_of(sites)).join().run()
    assert pump.outcome is Outcome.SITE_FAULT, pump.end
    assert re.search(words, pump.end.reason)
    assert all(found is None for found in aligned(pump).values())
    tallied = [r for r in pump.records if getattr(r, "phase", "") == "tally"]
    assert len(tallied) <= 2, "canaries, and the tally that shows the lie"


def heard_by(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Any], dict[str, AlignmentComputation]]:
    """The points that one site opened, with whose they were; and all computations."""
    heard = []
    made = dict[str, AlignmentComputation]()
    honest = AlignmentComputation.take_pass

    def listening(computation: AlignmentComputation, place: Any, to_me: Any) -> None:
        made[computation.name] = computation
        honest(computation, place, to_me)
        if computation.name == name and to_me and place.hop < len(computation.sites) - 1:
            [data] = to_me.values()
            points = np.frombuffer(data, np.uint8).reshape(-1, 32)
            heard.append((computation.sites[place.owner], points))

    monkeypatch.setattr(AlignmentComputation, "take_pass", listening)
    assert Pump(plan_of(), sites_of()).join().run().outcome is Outcome.CONVERGED
    return heard, made


def test_a_site_with_a_dictionary_finds_no_id_of_another_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the coordinator's help a site has all ciphertexts, its own keys and exponents, and the
    points that it passed.
    """
    heard, jobs = heard_by("b", monkeypatch)
    assert [owner for owner, _ in heard] == ["a", "c"]
    guesses = points_of([f"i{text}" for text in IDS["a"]], "align-1")
    own = jobs["b"].exponents
    tried = [guesses, *(multiplied(guesses, e) for e in (own.start, own.passing, own.end))]
    for owner, points in heard:
        known = {point.tobytes() for point in points}
        assert not any(point.tobytes() in known for each in tried for point in each), (
            "a guess is confirmed"
        )
        # The negative control: with the owner's and the earlier sites' exponents every guess is
        # confirmed.
        if owner == "a":
            opened = {point.tobytes() for point in multiplied(guesses, jobs["a"].exponents.start)}
            assert opened <= known


def test_an_id_that_is_inserted_is_tested_and_the_plan_bounds_how_many() -> None:
    """Inherent in any alignment: a site that lists an id learns whether all others have it."""
    pump = Pump(plan_of(), sites_of(a=("dot", "eve", "hal"))).join().run()
    assert aligned(pump)["a"].ids == ("eve",)
    refused = Pump(plan_of(max_ids=5), sites_of()).join().run()
    assert refused.outcome is Outcome.REFUSED
    assert "more ids than the plan's max_ids = 5" in refused.end.reason


def test_plans_that_cannot_be_aligned() -> None:
    clear = replace(plan_of(), privacy=Privacy(aggregation="plaintext"))
    assert "an alignment needs sealed sums" in str(plan_fault(clear))
    assert "at most 4166666 fit an alignment" in str(plan_fault(plan_of(max_ids=5_000_000)))
    of_two = replace(plan_of(), membership=Membership(tuple("abc"), 2))
    assert "an alignment needs every site" in str(plan_fault(of_two))
