"""Which run a command carries out, and what it refuses before it begins: defects of release 0.1 outside of the rounds."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stepwise import RUN, every_field, written
from threadpoolctl import threadpool_info, threadpool_limits
from tiny import CLOCKS, Machine, Pump, all_restarted, make_plan, make_site, make_sites, undisturbed

from coordinator.config.federation_toml import read_configuration
from coordinator.driver import Lap
from coordinator.machine.events import Action, Finish
from coordinator.machine.federation import begin
from coordinator.machine.records import (
    Closed,
    Delivered,
    Ended,
    MembershipChanged,
    Record,
    SiteExcluded,
    StepTaken,
)
from coordinator.machine.state import Recorded, resume
from coordinator.observers.terminal import Plain
from coordinator.service.run_once import Serving, choose_run, deliver_again, serve
from coordinator.store.runs import RunStore
from coordinator.store.schema import exclusive
from coreg_core.errors import StorageError, UsageError
from coreg_core.protocol.messages import PlanRefused
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Membership, Plan, plan_fault

NOW = "2026-01-01"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore(tmp_path / "runs.sqlite")
    yield opened
    opened.close()


def keep(store: RunStore, plan: Plan, records: Iterable[Record]) -> None:
    for record in records:
        store.write(plan.run, record, None, Lap(), NOW)


def left_after(store: RunStore, last: type[Record], **changes: Any) -> Pump:
    """A coordinator of run-1 that was killed once it had written the last record of that kind."""
    plan = make_plan(**changes)
    expected = undisturbed(plan).records
    kept = 1 + max(i for i, r in enumerate(expected) if isinstance(r, last))
    pump = Pump(plan, make_sites(plan.sites), kill_after=kept).join().run()
    store.begin(plan, NOW)
    keep(store, plan, pump.records)
    return pump


def taken_up(recorded: Recorded, sites: dict[str, Any]) -> Pump:
    """The command's machine from here on: with what the store told, and sites that come back with their ledgers."""
    pump = Pump(recorded.plan, all_restarted(sites))
    pump.records.clear()
    pump.carry_out(pump.machine.begin(recorded))
    return pump.join().run()


NEXT = "run-2"  # the name that the configuration has made up for a new run


# --- 4: killed between the end and its delivery, the same command began a new run ----------------------------------


@pytest.mark.parametrize("last", [StepTaken, Ended, Delivered])
@pytest.mark.parametrize("terms", [{}, {"max_rounds": 3}])
def test_a_run_that_has_ended_is_delivered_by_the_same_command(
    store: RunStore, last: type[Record], terms: dict[str, int]
) -> None:
    killed = left_after(store, last, **terms)
    plan = make_plan(run=NEXT, **terms)
    recorded = choose_run(store, plan, new=False)
    assert recorded.plan == killed.machine.plan
    assert (recorded.outcome or recorded.ended) is not None
    pump = taken_up(recorded, killed.sites)
    expected = undisturbed(killed.machine.plan)
    assert pump.end == expected.end
    assert killed.bits | pump.bits == expected.bits
    assert not any(site.breach for site in pump.sites.values())
    assert not any(isinstance(r, MembershipChanged | StepTaken) for r in pump.records)
    assert pump.records[-1] == Closed()
    assert [s.run for s in store.runs()] == [RUN]
    keep(store, recorded.plan, pump.records)
    again = choose_run(store, plan, new=False)
    assert every_field(again) == every_field(Recorded(plan))
    assert [s.run for s in store.runs()] == [NEXT, RUN]


def test_whoever_has_its_models_is_not_waited_for_again(store: RunStore) -> None:
    left_after(store, Ended)
    keep(store, make_plan(), [Delivered("a"), Delivered("c")])
    machine = Machine(make_plan())
    machine.begin(choose_run(store, make_plan(run=NEXT), new=False))
    assert machine.awaited == ("b",)


def test_a_run_that_ended_without_models_is_closed_by_the_same_command(store: RunStore) -> None:
    plan = make_plan()
    store.begin(plan, NOW)
    keep(store, plan, [SiteExcluded("b", Outcome.REFUSED, "b: no"), Ended(Outcome.REFUSED, "b: no", None)])
    federation, actions = begin(choose_run(store, make_plan(run=NEXT), new=False), CLOCKS)
    assert federation.done
    assert written(actions) == [Closed()]
    assert actions[-1] == Finish(RUN, Outcome.REFUSED, "b: no")


def test_an_interrupted_delivery_goes_on_as_well(store: RunStore) -> None:
    killed = left_after(store, Delivered)
    summary = store.find(RUN)
    assert (summary.stop, summary.closed) == ("CONVERGED", None)
    recorded = choose_run(store, make_plan(run=NEXT), new=False)
    assert recorded.fetched == set(killed.sites)
    federation, actions = begin(recorded, CLOCKS)
    assert federation.done, "everybody has what there is to have"
    assert written(actions) == [Closed()]


# --- which run -----------------------------------------------------------------------------------------------------


def test_an_unfinished_run_of_the_same_plan_is_taken_up(store: RunStore) -> None:
    killed = left_after(store, MembershipChanged, max_rounds=50)
    recorded = choose_run(store, make_plan(run=NEXT, max_rounds=50), new=False)
    assert every_field(recorded) == every_field(resume(killed.machine.plan, killed.records))


@pytest.mark.parametrize("same", [False, True])
def test_a_run_that_never_had_a_question_blocks_nothing(store: RunStore, same: bool) -> None:
    """Of the same plan it is taken up, sites that it had excluded among them; of another it gives way."""
    plan = make_plan(coupling=(9.0,))
    store.begin(plan, NOW)
    keep(store, plan, [SiteExcluded("b", Outcome.REFUSED, "no")])
    wanted = replace(plan, run=NEXT) if same else make_plan(run=NEXT)
    recorded = choose_run(store, wanted, new=False)
    assert recorded.plan.run == (RUN if same else NEXT)
    assert set(recorded.excluded) == ({"b"} if same else set())
    assert (store.find(RUN).closed is None) is same


def test_a_run_of_another_plan_that_has_begun_is_not_given_up_unasked(store: RunStore) -> None:
    left_after(store, MembershipChanged)
    other = make_plan(run=NEXT, coupling=(9.0,))
    with pytest.raises(UsageError, match=r"run run-1 in .* is unfinished and has another plan.*--new"):
        choose_run(store, other, new=False)
    assert store.find(RUN).closed is None
    assert every_field(choose_run(store, other, new=True)) == every_field(Recorded(other))
    assert store.find(RUN).stop == "INTERRUPTED"
    assert store.unfinished(make_plan().digest) is None


def test_models_of_another_plan_that_were_not_fetched_are_not_given_up_unasked(store: RunStore) -> None:
    killed = left_after(store, Ended)
    other = make_plan(run=NEXT, coupling=(9.0,))
    with pytest.raises(UsageError, match=r"another plan and is over \(CONVERGED\).*--deliver run-1"):
        choose_run(store, other, new=False)
    choose_run(store, other, new=True)
    recorded = deliver_again(store, make_plan(run="run-3"), RUN)  # as it was promised
    assert recorded.models is not None
    assert taken_up(recorded, killed.sites).bits == undisturbed(make_plan()).bits


def test_a_new_run_of_the_same_plan_is_begun_where_one_is_asked_for(store: RunStore) -> None:
    left_after(store, MembershipChanged)
    recorded = choose_run(store, make_plan(run=NEXT), new=True)
    assert every_field(recorded) == every_field(Recorded(make_plan(run=NEXT)))
    assert store.unfinished(make_plan().digest) == NEXT


def test_an_unfinished_run_of_an_older_release_is_not_given_up_unasked(store: RunStore) -> None:
    plan = make_plan()
    store.begin(plan, NOW)
    store._db.execute("update runs set format = 1")
    with pytest.raises(UsageError, match=r"by an older release.*--new"):
        choose_run(store, replace(plan, run=NEXT), new=False)
    assert choose_run(store, replace(plan, run=NEXT), new=True).plan.run == NEXT


# --- fetching once more --------------------------------------------------------------------------------------------


def test_models_of_a_closed_run_can_be_fetched_again(store: RunStore) -> None:
    killed = left_after(store, Closed)
    expected = undisturbed(make_plan())
    for _ in range(2):
        recorded = deliver_again(store, make_plan(run=NEXT), "run")  # a unique beginning is enough
        pump = taken_up(recorded, killed.sites)
        assert pump.end == expected.end
        assert pump.bits == expected.bits
        assert pump.records == [Delivered("a"), Delivered("b"), Delivered("c"), Closed()]
        keep(store, recorded.plan, pump.records)
    assert choose_run(store, make_plan(run=NEXT), new=False).plan.run == NEXT


def test_whoever_does_not_come_again_is_not_waited_for_for_ever(store: RunStore) -> None:
    killed = left_after(store, Closed)
    machine = Machine(make_plan())
    machine.begin(deliver_again(store, make_plan(run=NEXT), RUN))
    assert machine.awaited == tuple(killed.sites)
    actions: list[Action] = machine.handle(machine.deadline)
    assert actions[-1] == Finish(RUN, Outcome.CONVERGED, "")


def test_what_cannot_be_delivered_again_says_why(store: RunStore) -> None:
    left_after(store, Closed)
    with pytest.raises(UsageError, match="0 runs begin with 'nobody'"):
        deliver_again(store, make_plan(), "nobody")
    with pytest.raises(UsageError, match=r"had another plan\. Give the federation\.toml that it was run with"):
        deliver_again(store, make_plan(coupling=(9.0,)), RUN)
    for run in ("refused", "waits"):
        store.begin(make_plan(run=run), NOW)
    keep(store, make_plan(run="refused"), [Ended(Outcome.REFUSED, "b: no", None), Closed()])
    with pytest.raises(UsageError, match=r"ended without models \(REFUSED\)"):
        deliver_again(store, make_plan(), "refused")
    with pytest.raises(UsageError, match="is unfinished: give the same command without --deliver"):
        deliver_again(store, make_plan(), "waits")
    store._db.execute("update runs set format = 1 where run = 'run-1'")
    with pytest.raises(UsageError, match=r"older release .* which kept no models"):
        deliver_again(store, make_plan(), RUN)


# --- 6: plans that nobody can carry out were taken for good ---------------------------------------------------------

IMPOSSIBLE = {
    "one site three times": (Membership(("a", "a", "a"), 2), ["lists a twice", "counts once"]),
    "more than there are": (Membership(("a", "b", "c"), 50), ["min_sites=50", "3 sites"]),
}


@pytest.mark.parametrize(("membership", "words"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_plan_that_cannot_be_carried_out_is_refused_by_both_ends(
    tmp_path: Path, membership: Membership, words: list[str]
) -> None:
    plan = replace(make_plan(), membership=membership)
    fault = plan_fault(plan)
    assert fault is not None
    [answer] = make_site("a").handle(plan)
    assert isinstance(answer, PlanRefused)
    assert fault in answer.reason
    path = tmp_path / "federation.toml"
    sites = ", ".join(f'"{site}"' for site in membership.sites)
    path.write_text(
        f'[federation]\nname = "tiny"\nsites = [{sites}]\nmin_sites = {membership.min_sites}\n'
        '[privacy]\nanswers = "clear"\n'
    )
    with pytest.raises(UsageError) as error:
        read_configuration(path)
    for told in (fault, answer.reason, str(error.value)):
        assert all(word in told for word in words), told


def test_sites_that_are_not_in_site_order_are_refused_too() -> None:
    """Sums are taken in site order, and a site's position among the models is its position in the plan."""
    fault = plan_fault(replace(make_plan(), membership=Membership(("b", "a"), 2)))
    assert fault is not None
    assert "site order" in fault
    assert plan_fault(make_plan()) is None


# --- 8: two coordinators shared a store -----------------------------------------------------------------------------


def test_a_second_coordinator_on_a_store_is_refused_before_it_touches_it(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text(
        '[federation]\nname = "tiny"\nsites = ["a", "b"]\n[privacy]\nanswers = "clear"\n'
        '[service]\nlisten = "127.0.0.1:0"\n'
    )
    configuration = read_configuration(path)
    with exclusive(configuration.service.store), pytest.raises(StorageError, match="in use by the coordinator"):
        serve(configuration, Plain(), Serving(insecure=True))
    assert not configuration.service.store.exists()


# --- 9: a run that was taken up was folded again with other threads than it had ---------------------------------------


@pytest.mark.parametrize("serving", [Serving(insecure=True), Serving(insecure=True, deliver="run-1")])
def test_blas_has_the_plan_s_threads_before_a_run_is_folded_again(
    tmp_path: Path, serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From m = 10 001 on OpenBLAS adds by pieces where it may: the open question would have other bits under its number."""
    path = tmp_path / "federation.toml"
    path.write_text(
        '[federation]\nname = "tiny"\nsites = ["a", "b"]\n[privacy]\nanswers = "clear"\n'
        '[service]\nlisten = "127.0.0.1:0"\n'
    )
    threads: list[set[int]] = []

    def folded(*_about: Any, **_more: Any) -> Any:
        threads.append({library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"})
        raise UsageError("enough")

    monkeypatch.setattr("coordinator.service.run_once.choose_run", folded)
    monkeypatch.setattr("coordinator.service.run_once.deliver_again", folded)
    with threadpool_limits(2), pytest.raises(UsageError, match="enough"):
        serve(read_configuration(path), Plain(), serving)
    assert threads == [{1}]
