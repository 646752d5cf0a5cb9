"""Shared ids that not every site has: the alignment's places and counts, then a training of both objectives with them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from machine.additive_tiny import additive_plan, job
from machine.test_alignment import aligned, plan_of, sites_of
from machine.tiny import Pump, all_restarted, make_plan, sealed, site_with

from coreg_core.additive.reference.closed_form import solve_dense
from coreg_core.alignment.overlap import Overlap
from coreg_core.protocol.outcomes import Outcome
from site_agent.machine.agreement import AgreementJob
from site_agent.machine.site import Site
from site_agent.machine.site_data import PrivateData
from site_agent.policy.dry_run import rehearse
from site_agent.policy.policy import Policy

SITES = tuple("abcd")
IDS = {
    "a": ("ann", "bob", "cid", "eve", "fay"),
    "b": ("bob", "cid", "dan", "eve"),
    "c": ("bob", "cid", "eve", "hal"),
    "d": ("ann", "bob", "dan", "eve", "ivy"),
}


def test_ids_of_enough_sites_are_shared_where_too_few_are_at_all_sites() -> None:
    pump = Pump(plan_of("abcd", min_overlap=2), sites_of("abcd", **IDS)).join().run()
    assert pump.outcome is Outcome.CONVERGED, pump.end
    times = {text: sum(text in ids for ids in IDS.values()) for ids in IDS.values() for text in ids}
    shared = {text for text, k in times.items() if k >= 2}
    digests, place = set(), dict[str, int]()
    for name, found in aligned(pump).items():
        assert set(found.ids) == shared & set(IDS[name])
        assert len(found.overlap.counts) == len(shared) == 5
        digests.add(found.digest)
        for text, at in zip(found.ids, found.overlap.places.tolist(), strict=True):
            assert place.setdefault(text, at) == at, "one order at every site"
            assert found.overlap.counts[at] == times[text]
    assert len(digests) == 1
    assert sorted(place.values()) == list(range(5))


@pytest.mark.parametrize(
    ("terms", "everywhere"),
    [
        ({"min_overlap": 4}, True),
        ({"min_overlap": 3, "intersect_from": 2}, True),
        ({"min_overlap": 3, "intersect_from": 3}, False),
    ],
)
def test_the_rule_that_the_plan_states_decides(terms: Mapping[str, int], everywhere: bool) -> None:
    """Two ids, bob and eve, are at all sites; cid is at three."""
    for found in aligned(Pump(plan_of("abcd", **terms), sites_of("abcd", **IDS)).join().run()).values():
        assert (found.overlap is None) is everywhere
        assert {"bob", "eve"} <= set(found.ids) <= {"bob", "eve", "cid"}


def test_the_smallest_sum_is_of_all_sites_if_no_id_has_fewer() -> None:
    same = dict.fromkeys("abc", ("ann", "bob"))
    found = aligned(Pump(plan_of("abc", min_overlap=2), sites_of("abc", **same)).join().run())
    assert all(each.overlap is None for each in found.values())


# --- training -----------------------------------------------------------------------------------------------------


def known_to(name: str, m: int = 40) -> Overlap:
    """Each instance at two to four of the sites, by its number."""
    known = np.array([[(i % 5 != v) and (i % 7 != v) for i in range(m)] for v in range(4)])
    return Overlap(np.flatnonzero(known[SITES.index(name)]), known.sum(axis=0), 4)


def data(name: str, labels: int = 8) -> PrivateData:
    rng, v, overlap = np.random.default_rng(7), SITES.index(name), known_to(name)
    A = rng.normal(size=(40 + 4 * labels, 8))
    y = 5.0 + sum(np.sin(A[:, 2 * u]) + 0.3 * A[:, 2 * u + 1] ** 2 for u in range(4))
    columns, own = slice(2 * v, 2 * v + 2), slice(40 + labels * v, 40 + labels * (v + 1))
    X, Z = np.ascontiguousarray(A[own, columns]), np.ascontiguousarray(A[overlap.places, columns])
    return PrivateData(X, y[own], Z, "of the alignment", name.encode(), overlap=overlap, aligned_sites=SITES)


def sites() -> dict[str, Site]:
    return {name: site_with(name, data(name)) for name in SITES}


PLANS = {
    "agreement": make_plan(sites=SITES, min_sites=4, coupling=(0.01, 0.1)),
    "additive": additive_plan(SITES, min_sites=4, forecast=True, folds=3),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_sealed_run_that_is_killed_ends_on_the_bits_of_an_undisturbed_one(name: str) -> None:
    plan = sealed(PLANS[name])
    whole = Pump(plan, sites()).join().run()
    assert whole.outcome is Outcome.CONVERGED, whole.end
    first = Pump(plan, sites(), kill_after=8).join().run()
    again = Pump(plan, all_restarted(first.sites), first.records).join().run()
    assert again.outcome is Outcome.CONVERGED, again.end
    assert again.bits == whole.bits


def test_the_additive_sum_is_that_of_the_dense_solution() -> None:
    pump = Pump(PLANS["additive"], sites()).join().run()
    engines = [job(site).engine for site in pump.sites.values()]
    result = pump.sites["a"].result
    assert result is not None
    assert result.point is not None
    dense = solve_dense(
        [e.view for e in engines], [e.hypers[-1] for e in engines], PLANS["additive"].objective.intercept_prior
    )
    s = np.sum([e.view.shared @ w for e, w in zip(engines, dense.w, strict=True)], axis=0)
    np.testing.assert_allclose(result.point[: len(s), 0], s, atol=1e-6)
    for engine, name in zip(engines, SITES, strict=True):
        unknown = np.delete(np.arange(40), known_to(name).places)
        assert not engine.view.shared[unknown].any()
        assert not engine.view.coupling.backward(np.ones((engine.n_labelled, 1)))[unknown].any()


def test_each_site_chooses_on_the_path_and_its_model_serves_rows_it_never_shared() -> None:
    pump = Pump(PLANS["agreement"], sites()).join().run()
    for name, site in pump.sites.items():
        assert isinstance(site._job, AgreementJob)
        assert site.result is not None
        assert site.result.choice is not None
        for solution in site.result.solutions:
            assert np.isfinite(solution.predict(data(name).X)).all()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sites": tuple("abc"), "min_sites": 3}, "needs exactly these sites"),
        ({"min_sites": 3}, r"all of them \(min_sites = 4\)"),
        ({"schedule": "block-coordinate-descent"}, "needs sites that know all shared instances"),
    ],
)
def test_a_plan_over_other_sites_or_in_series_is_refused(changes: Mapping[str, Any], match: str) -> None:
    plan = make_plan(**({"sites": SITES, "min_sites": 4} | dict(changes)))
    pump = Pump(plan, {name: site_with(name, data(name)) for name in plan.sites}).join().run()
    assert not pump.bits
    assert re.search(match, pump.end.reason)


def test_check_says_before_the_run_that_a_site_is_missing(tmp_path) -> None:
    policy = Policy(peers={name: name * 64 for name in SITES}, members_may_learn="operators")
    for plan, told in ((additive_plan(SITES, min_sites=4), False), (additive_plan("abc", min_sites=3), True)):
        reasons = rehearse(sealed(plan), "a", policy, data("a"), tmp_path / "ledger.jsonl").reasons
        assert any("needs exactly these sites" in reason for reason in reasons) == told


def test_a_policy_of_sums_refuses_sums_over_other_sites_at_each_instance() -> None:
    pins = {"peers": {name: name * 64 for name in SITES}, "objectives": ("additive",)}
    plan = sealed(additive_plan(SITES, min_sites=4, tuning_steps=0, probes=1))
    partners = Policy(**pins, members_may_learn="operators")
    assert partners.objection(plan, data("a")) is None
    known = "some shared instances are known to 2 of 4 sites"
    assert known in str(Policy(**pins, members_may_learn="sums").objection(plan, data("a")))
    assert known in str(replace_policy(partners, min_sites=3).objection(plan, data("a")))


def replace_policy(policy: Policy, **changes: Any) -> Policy:
    return policy.model_copy(update=changes)


def test_a_policy_judges_the_alignment_before_an_id_leaves() -> None:
    pins = {"peers": {name: name * 64 for name in SITES}, "alignment": True}
    plan = plan_of("abcd", min_overlap=3)
    assert Policy(**pins, members_may_learn="operators").objection(plan) is None
    for policy in (
        Policy(**pins, members_may_learn="sums"),
        Policy(**pins, members_may_learn="operators", min_sites=4),
    ):
        assert "set min_overlap = 4" in str(policy.objection(plan))
        assert policy.objection(replace(plan, objective=replace(plan.objective, min_overlap=4))) is None
