"""The additive objective over mutual TLS: a killed training ends on the same bits; models predict alone and score together."""

import csv

import numpy as np
import pytest
from federation import ADDITIVE, SITES, as_json, federation, until, well
from numpy.testing import assert_allclose

from site_agent.data.tables import read_table
from site_agent.models.file import load_model

pytestmark = pytest.mark.e2e
COUNT = 10
SCORING = '[study]\nname = "{name}"\n[model]\nobjective = "scoring"\n'


def score(fed):
    """Ten new instances in each site's own order; what each site hears of their scores, by their ids."""
    for v, site in enumerate(SITES):
        rng = np.random.default_rng(v)
        with (fed.folder / f"{site}-new.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "a", "b", "c"])
            writer.writerows([f"n{i}", *map(repr, rng.normal(size=3).tolist())] for i in rng.permutation(COUNT))
    fed.study("scores", SCORING)
    coordinator = fed.run("scores")
    agents = [
        fed.start(
            f"{site}-scores", "coreg-agent", "score", "--model", f"{site}.model", "--data", f"{site}-new.csv", "--id", "id",
            "--identity", site, "--policy", "policy.toml", "--coordinator", fed.address, "--output", f"{site}-scores.csv",
        )
        for site in SITES
    ]  # fmt: skip
    assert coordinator.wait() == 0, fed.last()
    assert [agent.wait() for agent in agents] == [0, 0, 0], fed.last("north-scores")
    tables = [read_table(fed.folder / f"{site}-scores.csv") for site in SITES]
    return [dict(zip(table.ids("id"), table.numbers("score"), strict=True)) for table in tables]


@pytest.mark.drill
def test_both_sides_are_killed_and_the_bits_are_the_same_then_models_predict_alone_and_score_together(tmp_path):
    with federation(tmp_path, 'objectives = ["additive"]\nscoring = true') as fed:
        west = tmp_path / "west.csv"
        west.write_text("".join(x for x in west.read_text().splitlines(keepends=True) if x.endswith(("y\n", ",\n"))))
        fed.study("parts", ADDITIVE, model="tuning_steps = 4")
        coordinator, agents = fed.run("parts"), {site: fed.joins(site) for site in ("north", "south")}
        agents["west"] = fed.joins("west", "--no-labels")
        until(lambda: fed.answered() >= 12)
        agents["south"].kill()
        killed_at = fed.answered()
        agents["south"] = fed.joins("south")
        until(lambda: fed.answered() >= killed_at + 8)
        coordinator.kill()
        coordinator = fed.run("parts")
        assert coordinator.wait() == 0, fed.last()
        assert [agent.wait() for agent in agents.values()] == [0, 0, 0], fed.last("south")
        assert fed.models() == fed.undisturbed(without_labels=["west"])
        end = fed.events()[-1]
        assert (end["stop"], {"final solve", "certificate", "models"} <= set(end["phases"])) == ("CONVERGED", True)
        assert ["label noise of this site" in fed.said(site) for site in SITES] == [True, True, False]

        well("coreg-agent", "predict", "--model", "north.model", "--data", "north.csv", "--id", "id", cwd=tmp_path)
        predicted = read_table(tmp_path / "predictions.csv").numbers("prediction")[-COUNT:]
        labels = [float(row.rpartition(",")[2]) for row in (tmp_path / "north.csv").read_text().splitlines()[-COUNT:]]
        assert np.sqrt(np.mean(np.subtract(predicted, labels) ** 2)) < 1.0, "labels have deviation 1.4"

        heard, parts, intercepts = score(fed), dict[str, float](), []
        for site in SITES:
            model, table = load_model(tmp_path / f"{site}.model"), read_table(tmp_path / f"{site}-new.csv")
            intercepts.append(model.intercept)
            for name, part in zip(table.ids("id"), model.part(table), strict=True):
                parts[name] = parts.get(name, 0.0) + float(part)
        for found, intercept in zip(heard, intercepts, strict=True):
            assert list(found) == sorted(found), "in the order of their ids"
            assert_allclose([found[name] for name in parts], [intercept + part for part in parts.values()], atol=1e-12)
        assert {(tmp_path / f"{site}-scores.csv").stat().st_mode & 0o777 for site in SITES} == {0o600}
        ledger = as_json("coreg-agent", "ledger", "north/ledger.jsonl", cwd=tmp_path)
        [share] = [entry for entry in ledger if entry.get("question") == "score linear"]
        assert (share["sent"], share["words"]) == ("sealed", COUNT + 4), "a tag beside the scores"
