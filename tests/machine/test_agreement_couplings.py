"""coordinator/machine/agreement.py: couplings of a plan, absolute or in units of Σn_v/(2M²m), and what sites hold them to."""

import re
from dataclasses import replace

import numpy as np
import pytest
from machine.stepwise import progress_of
from machine.tiny import SCHEDULES, UNLABELLED, Pump, acceptance, make_plan, make_site, undisturbed, watched
from numpy.testing import assert_allclose

from coordinator.config.federation_toml import read_configuration
from coordinator.machine.agreement import terms_of
from coreg_core.agreement.columns import Column
from coreg_core.agreement.objective import consensus_weight, labels_behind, relative_coupling
from coreg_core.errors import UsageError
from coreg_core.protocol.messages import Ask, Fault, Prediction
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.vectors import Vector

RELATIVE = (0.0, 0.5, 2.0)
PLAN = make_plan(coupling=RELATIVE, relative=True)


def test_a_relative_run_ends_on_the_bits_of_the_plain_one_and_each_site_chooses_on_the_path():
    """Three sites of four labels each on six shared instances: λ = ρ · 12/(2 · 9 · 6)."""
    plain = tuple(relative_coupling(rho, 12, 3, UNLABELLED) for rho in RELATIVE)
    assert plain == (0.0, 0.5 * 12 / 108, 2.0 * 12 / 108)
    relative, absolute = undisturbed(PLAN), undisturbed(make_plan(coupling=plain))
    assert relative.outcome is Outcome.CONVERGED
    assert relative.bits == absolute.bits
    for name, site in relative.sites.items():
        assert site.result.couplings == plain
        assert site.result.choice.nested is None, "four labels are too few for five folds"
        assert [len(errors) for errors in site.result.choice.left_out] == [4, 4, 4]
        assert absolute.sites[name].result.choice.chosen == site.result.choice.chosen


def test_without_a_site_the_couplings_are_those_of_who_is_left():
    plan = make_plan(coupling=RELATIVE, relative=True, on_dropout="continue")
    sites = watched(plan)
    sites["c"].when = lambda ask: ask.question < 2
    pump = Pump(plan, sites).join().run()
    while pump.end is None:
        pump.out_of_time().run()
    assert pump.machine.participants == ("a", "b")
    assert sites["a"].result.couplings == tuple(relative_coupling(rho, 8, 2, UNLABELLED) for rho in RELATIVE)


def test_rounding_that_a_site_stated_for_its_own_number_of_labels_is_scaled_to_everybodys():
    """A site with 2 labels beside one of 38: the weight is 10 times what it can have known of.

    Only Σρ² is known of answers that are summed, so the worst case is that one site has all of it, and grew the most.
    """
    accepted = {
        "a": replace(acceptance("a", PLAN), rounding=1e-9, n_labelled=2),
        "b": replace(acceptance("b", PLAN), rounding=1e-9, n_labelled=38),
    }
    assert_allclose(terms_of(PLAN, accepted, ("a", "b")).roundings, [10 * np.sqrt(2) * 1e-9, 0.0])


def test_sites_tell_how_many_labels_they_have_where_the_plan_is_relative_and_nowhere_else():
    for plan, n_labelled in ((PLAN, 4), (make_plan(), 0)):
        [accepted] = make_site("a").handle(plan)
        assert accepted.n_labelled == n_labelled


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_column_without_coupling_shows_no_residual(schedule: str) -> None:
    plan = make_plan(schedule=schedule, coupling=(0.0, 0.5))
    pump = undisturbed(plan)
    shown = [p.residual.tolist() for p in progress_of(plan, pump.records)]
    assert len(shown) > 3
    assert {uncoupled for uncoupled, _ in shown} == {0.0}
    largest = [max(residuals) for residuals in shown]
    assert largest[-1] < 1e-2 * largest[0], "what an operator sees falls"


def question(n_labels, n_views=3, **changes):
    columns = []
    for rho in RELATIVE:
        lam = relative_coupling(rho, n_labels, n_views, UNLABELLED)
        columns.append(Column(lam, consensus_weight(lam, n_views)))
    targets = Vector(np.zeros((UNLABELLED, len(RELATIVE))))
    return replace(Ask("run-1", 0, 0, "affine", tuple(columns), is_candidate=False, targets=targets), **changes)


@pytest.mark.parametrize(("n_labels", "n_views"), [(12, 3), (6, 3), (5, 2), (10**6, 3)])
def test_a_site_answers_what_its_plan_comes_to_with_some_number_of_labels(n_labels, n_views):
    site = make_site("a")
    site.handle(PLAN)
    [answer] = site.handle(question(n_labels, n_views))
    assert isinstance(answer, Prediction)


def test_a_site_refuses_couplings_that_no_number_of_labels_makes():
    one, two, three = question(12).columns
    bent = (
        (one, two, Column(1.01 * three.coupling, 1.01 * three.weight)),
        (one, two, question(13).columns[2]),
        (one, two),
        (Column(0.1, 0.6), two, three),
        (one, two, replace(three, weight=2 * three.weight)),
        question(5).columns,  # four are its own, and each of two others has one at least
        question(40, 4).columns,  # four sites of three
    )
    for columns in bent:
        site = make_site("a")
        site.handle(PLAN)
        vector = Vector(np.zeros((UNLABELLED, len(columns))))
        [answer] = site.handle(question(12, columns=columns, targets=vector))
        assert isinstance(answer, Fault), columns


@pytest.mark.parametrize("n_labels", [1, 45, 10**7])
@pytest.mark.parametrize("rho", [1e-3, 0.3, 7.0])
def test_the_number_of_labels_can_be_read_off_a_coupling(n_labels, rho):
    assert labels_behind(relative_coupling(rho, n_labels, 5, 1000), rho, 5, 1000) == n_labels


@pytest.mark.parametrize(
    ("said", "coupling", "relative"),
    [
        ("0.5", (0.5,), False),
        ("[0.5]", (0.5,), False),
        ("[0.5, 1]", (0.0, 0.5, 1.0), False),
        ("[1, 0, 0.5]", (1.0, 0.0, 0.5), False),
        ("{ relative = 0.5 }", (0.5,), True),
        ("{ relative = [0.5, 1] }", (0.0, 0.5, 1.0), True),
    ],
)
def test_a_path_in_the_file_always_has_zero_in_it_and_may_be_relative(tmp_path, said, coupling, relative):
    file = tmp_path / "federation.toml"
    file.write_text(f'[federation]\nname = "f"\nsites = ["a", "b", "c"]\n[model]\ncoupling = {said}\n')
    objective = read_configuration(file).objective
    assert (objective.coupling, objective.relative) == (coupling, relative)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("coupling = { absolute = 1 }", "relative"),
        ("relative = true", "{ relative"),
        ("coupling = [-1, 2]", "coupling"),
    ],
)
def test_another_way_of_saying_it_is_a_mistake(tmp_path, line, named):
    file = tmp_path / "federation.toml"
    file.write_text(f'[federation]\nname = "f"\nsites = ["a", "b", "c"]\n[model]\n{line}\n')
    with pytest.raises(UsageError, match=re.escape(named)):
        read_configuration(file)
