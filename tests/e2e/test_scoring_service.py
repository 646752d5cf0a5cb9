"""Scoring together as processes over mutual TLS, by the commands that operators type, after a training."""

import csv
import json

import numpy as np
import pytest
from federation import SITES, ends, federation, run, until, well
from numpy.testing import assert_allclose
from test_additive_service import TOML

from site_agent.data.tables import read_table
from site_agent.models.file import load_model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
COUNT = 10


def batches(fed, lacking=()):
    """The same ten new patients at every site, in an order of its own; of some, west has no record."""
    for v, site in enumerate(SITES):
        rng = np.random.default_rng(v)
        with (fed.folder / f"{site}-new.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "a", "b", "c"])
            for i in rng.permutation(COUNT):
                known = site != "west" or i not in lacking
                writer.writerow([f"n{i}", *(map(repr, rng.normal(size=3).tolist()) if known else ("", "", ""))])


def score(fed, scoring=""):
    """A coordinator's command and three agents'; their exit codes."""
    configuration = (fed.folder / "co" / "federation.toml").read_text()
    (fed.folder / "co" / "scoring.toml").write_text(f"{configuration}\n[scoring]\n{scoring}\n")
    port = fed.folder / "port"
    port.unlink(missing_ok=True)
    serving = fed.start(
        "scoring",
        "coreg-coordinator",
        "score",
        "co/scoring.toml",
        "--store",
        "runs.sqlite",
        "--port-file",
        port,
        "--json",
    )
    until(lambda: serving.poll() is not None or (port.exists() and port.read_text().endswith("\n")))
    assert serving.poll() is None, fed.said("scoring")
    agents = [
        fed.start(
            f"{site}-scores", "coreg-agent", "score", "--model", f"{site}.model", "--data", f"{site}-new.csv", "--id", "id",
            "--identity", site, "--policy", "policy.toml", "--coordinator", f"127.0.0.1:{port.read_text().strip()}",
            "--output", f"{site}-scores.csv", "--json",
        )
        for site in SITES
    ]  # fmt: skip
    return ends(serving), [ends(agent) for agent in agents]


def scores(fed, site):
    table = read_table(fed.folder / f"{site}-scores.csv")
    return dict(zip(table.ids("id"), table.numbers("score"), strict=True))


def test_ten_new_instances_are_scored_by_every_sites_part(tmp_path):
    with federation(tmp_path) as fed:
        (tmp_path / "co" / "federation.toml").write_text(TOML.format(sites=json.dumps(list(SITES)), steps=1))
        fed.policy("policy.toml", 'objectives = ["additive"]\nscoring = true')
        coordinator = fed.coordinator()
        agents = [fed.agent(site, "--policy", "policy.toml") for site in SITES]
        assert ends(coordinator) == 0, fed.said("coordinator")
        assert [ends(agent) for agent in agents] == [0, 0, 0], fed.said("north")
        records = (tmp_path / "runs.sqlite").read_bytes()

        batches(fed)
        assert score(fed) == (0, [0, 0, 0]), fed.said("scoring") + fed.said("north-scores")
        expected: dict[str, float] = {}
        for site in SITES:
            model, table = load_model(tmp_path / f"{site}.model"), read_table(tmp_path / f"{site}-new.csv")
            for name, part in zip(table.ids("id"), model.part(table), strict=True):
                expected[name] = expected.get(name, model.intercept) + float(part)
        for site in SITES:
            found = scores(fed, site)
            assert list(found) == sorted(found), "in the order of their ids"
            assert_allclose(
                [found[name] for name in sorted(expected)], [expected[n] for n in sorted(expected)], rtol=1e-12
            )
            assert (tmp_path / f"{site}-scores.csv").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "runs.sqlite").read_bytes() == records, "nothing on the coordinator's disk"
        ledger = well("coreg-agent", "ledger", "north/ledger.jsonl", "--json", cwd=tmp_path)
        told = [json.loads(line) for line in ledger.splitlines()]
        [share] = [entry for entry in told if entry.get("question_kind") == "TOGETHER"]
        assert (share["sent"], share["numbers"]) == ("masked", COUNT + 2), "two words of check beside the scores"
        assert "its part of the score" in share["what"]

        batches(fed, lacking=(3, 7))
        code, codes = score(fed)
        assert code == 4, fed.said("scoring")
        assert 4 in codes
        assert "west has no record of 2 of 10 instances" in fed.said("scoring")
        assert "n3, n7 first" in fed.said("west-scores"), "its own operator hears which; nobody else does"
        assert "n3" not in fed.said("scoring")


def test_scoring_before_a_training_is_a_mistake(tmp_path):
    with federation(tmp_path) as fed:
        code, _, error = run("coreg-coordinator", "score", "co/federation.toml", cwd=fed.folder)
        assert (code, "train first" in error or "no such run store" in error) == (2, True)
