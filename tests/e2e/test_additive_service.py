"""An additive training over mutual TLS: agents are killed in it, then models predict alone and
score together.
"""

import csv

import numpy as np
import pytest
from federation import ADDITIVE, SITES, as_json, federation, until, well
from numpy.testing import assert_allclose

from site_agent.data.tables import read_table
from site_agent.models.file import load_model
from tests.storm.world import alike

pytestmark = pytest.mark.e2e
COUNT = 10
SCORING = (
    '[study]\nname = "{name}"\n[model]\nobjective = "scoring"\ncontributions ='
    " true\n[alignment]\nalign = false\n"
)


def score(fed):
    """Ten new instances in each site's own order; the scores and the parts that each site hears, by
    their ids.
    """
    for v, site in enumerate(SITES):
        rng = np.random.default_rng(v)
        with (fed.folder / f"{site}-new.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "a", "b", "c"])
            writer.writerows(
                [f"n{i}", *map(repr, rng.normal(size=3).tolist())] for i in rng.permutation(COUNT)
            )
    fed.study("scores", SCORING)
    coordinator = fed.run("scores")
    agents = [
        fed.start(
            f"{site}-scores", "coreg-agent", "score", "--models", f"{site}-models", "--data",
            f"{site}-new.csv", "--id", "id",
            "--identity", site, "--policy", "policy.toml", "--coordinator", fed.address, "--yes",
        )
        for site in SITES
    ]  # fmt: skip
    assert coordinator.wait() == 0, fed.last()
    assert [agent.wait() for agent in agents] == [0, 0, 0], fed.last("north-scores")
    tables = [
        read_table(path)
        for site in SITES
        for path in fed.folder.glob(f"{site}-models/scores/*/scores.csv")
    ]
    return [
        {
            name: dict(zip(table.ids("id"), table.numbers(name), strict=True))
            for name in ("score", *(f"part_{s}" for s in SITES))
        }
        for table in tables
    ]


@pytest.mark.drill
def test_both_sides_are_killed_and_the_models_are_those_of_a_calm_run_then_they_predict_and_score(
    tmp_path,
):
    with federation(
        tmp_path, 'objectives = ["additive"]\nscoring = true\ncontributions = true'
    ) as fed:
        fed.study("parts", ADDITIVE, model="")
        coordinator = fed.run("parts")
        agents = {site: fed.joins(site) for site in ("north", "south")}
        agents["west"] = fed.joins("west")
        until(lambda: fed.answered() >= 3)
        agents["south"].kill()
        agents["south"] = fed.joins("south")
        until(lambda: fed.answered() >= 6)
        coordinator.kill()
        coordinator = fed.run("parts")
        assert coordinator.wait() == 0, fed.last()
        assert [agent.wait() for agent in agents.values()] == [0, 0, 0], fed.last("south")
        assert alike(fed.models(), fed.undisturbed())
        *steps, end = fed.events()
        phases = {step.get("phase") for step in steps}
        assert end["stop"] == "CONVERGED"
        assert {"cross products", "second moments", "verdicts"} <= phases

        well(
            "coreg-agent",
            "predict",
            "--model",
            fed.model("north"),
            "--data",
            "north.csv",
            "--id",
            "id",
            cwd=tmp_path,
        )
        predicted = read_table(tmp_path / "predictions.csv").numbers("prediction")[-COUNT:]
        labels = [
            float(row.rpartition(",")[2])
            for row in (tmp_path / "north.csv").read_text().splitlines()[-COUNT:]
        ]
        assert np.sqrt(np.mean(np.subtract(predicted, labels) ** 2)) < 1.0, (
            "labels have deviation 1.4"
        )

        heard = score(fed)
        parts = dict[str, float]()
        intercepts = []
        shown = heard[0]
        for site in SITES:
            model = load_model(fed.model(site))
            table = read_table(tmp_path / f"{site}-new.csv")
            intercepts.append(model.intercept)
            parts_of_site = model.function.part(model.phi(table), range(len(SITES)))
            for name, part in zip(table.ids("id"), parts_of_site, strict=True):
                parts[name] = parts.get(name, 0.0) + float(part)
                assert abs(shown[f"part_{site}"][name] - part) < 1e-9, (
                    "all policies allow contributions"
                )
        for site, told, intercept in zip(SITES, heard, intercepts, strict=True):
            found = told["score"]
            assert list(found) == sorted(found), "in the order of their ids"
            model = load_model(fed.model(site))
            table = read_table(tmp_path / f"{site}-new.csv")
            together = np.array([intercept + parts[name] for name in table.ids("id")])
            local = model.local_predictions(table)
            corrected = model.function.correct_score(together, local, model.features(table))
            assert_allclose([found[name] for name in table.ids("id")], corrected, atol=1e-9)
        assert {
            path.stat().st_mode & 0o777 for path in tmp_path.glob("*-models/scores/*/scores.csv")
        } == {0o600}
        ledger = as_json("coreg-agent", "ledger", "north/ledger.jsonl", cwd=tmp_path)
        [share] = [entry for entry in ledger if entry.get("question") == "scores"]
        assert share["sent"] == "sealed", "for two receivers, with a tag each"
        assert share["bytes"] == 2 * (8 * COUNT + 16), "for two receivers, with a tag each"
