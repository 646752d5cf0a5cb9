"""A path of couplings: its columns, and how federation.toml writes it."""

from pathlib import Path

import pytest
from machine.tiny import SCHEDULES, Pump, make_plan, make_sites

from coordinator.config.federation_toml import read_configuration


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


@pytest.mark.parametrize(
    ("written", "coupling"),
    [("0.5", (0.5,)), ("[0.5, 1]", (0.0, 0.5, 1.0)), ("[0.5, 0, 1]", (0.5, 0.0, 1.0)), ("[0.5]", (0.5,))],
)
def test_a_path_of_the_file_contains_each_site_alone(tmp_path: Path, written: str, coupling: tuple[float, ...]) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(f'[federation]\nname = "f"\nsites = ["a", "b", "c"]\n[model]\ncoupling = {written}\n')
    assert read_configuration(file).objective.coupling == coupling
