"""Couplings of a plan, absolute or in units of Σn_v/(2M²m): what they come to, and how federation.toml says them."""

import re
from pathlib import Path
from typing import Any

import pytest
from machine.tiny import SCHEDULES, UNLABELLED, Pump, make_plan, make_sites, sealed, undisturbed

from coordinator.config.federation_toml import read_configuration
from coreg_core.agreement.objective import relative_coupling
from coreg_core.errors import UsageError
from coreg_core.protocol.outcomes import Outcome

RELATIVE = (0.0, 0.5, 2.0)


@pytest.mark.parametrize("secure", [False, True])
def test_a_relative_run_ends_on_the_bits_of_the_plain_one_and_each_site_chooses_on_the_path(secure: bool) -> None:
    """Three sites of four labels each on six shared instances: λ = ρ · 12/(2 · 9 · 6)."""
    plain = tuple(relative_coupling(rho, 12, 3, UNLABELLED) for rho in RELATIVE)
    assert plain == (0.0, 0.5 * 12 / 108, 2.0 * 12 / 108)
    plan = make_plan(coupling=RELATIVE, relative=True)
    relative, absolute = undisturbed(sealed(plan) if secure else plan), undisturbed(make_plan(coupling=plain))
    assert relative.outcome is Outcome.CONVERGED
    assert relative.bits == absolute.bits
    for name, site in relative.sites.items():
        assert site.result.couplings == plain
        assert site.result.choice.nested is None, "four labels are too few for five folds"
        assert absolute.sites[name].result.choice.chosen == site.result.choice.chosen


def test_without_a_site_the_couplings_are_those_of_who_is_left() -> None:
    plan = make_plan(coupling=RELATIVE, relative=True, on_dropout="continue")
    pump = Pump(plan, make_sites("abc")).join().steps(2).lose("c").out_of_time().run()
    assert pump.sites["a"].result.couplings == tuple(relative_coupling(rho, 8, 2, UNLABELLED) for rho in RELATIVE)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_column_without_coupling_shows_no_residual(schedule: str) -> None:
    plan, seen = make_plan(schedule=schedule, coupling=(0.0, 0.5)), []
    sites = make_sites("abc")
    pump = Pump(plan, sites).join()
    while pump.events and pump.end is None:
        pump.step()
        if (progress := sites["a"].progress) is not None:
            seen.append(progress.residual.tolist())
    assert {uncoupled for uncoupled, _ in seen} == {0.0}
    assert max(seen[-1]) < 1e-2 * max(seen[0]), "what an operator sees falls"


def configured(folder: Path, line: str) -> Any:
    file = folder / "federation.toml"
    file.write_text(f'[federation]\nname = "f"\nsites = ["a", "b", "c"]\n[model]\n{line}\n')
    return read_configuration(file).objective


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
def test_a_path_in_the_file_always_has_zero_in_it_and_may_be_relative(
    tmp_path: Path, said: str, coupling: tuple[float, ...], relative: bool
) -> None:
    objective = configured(tmp_path, f"coupling = {said}")
    assert (objective.coupling, objective.relative) == (coupling, relative)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("coupling = { absolute = 1 }", "relative"),
        ("relative = true", "{ relative"),
        ("coupling = [-1, 2]", "coupling"),
    ],
)
def test_another_way_of_saying_it_is_a_mistake(tmp_path: Path, line: str, named: str) -> None:
    with pytest.raises(UsageError, match=re.escape(named)):
        configured(tmp_path, line)
