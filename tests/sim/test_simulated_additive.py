"""coreg-sim with the additive objective: beside the dense oracle, for people and for machines."""

import json

from typer.testing import CliRunner

from coreg_sim.cli.app import app

SMALL = ["--sites", "3", "--labelled", "15", "--unlabelled", "60", "--views", "2", "--objective", "additive"]


def said(*arguments):
    done = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_messages_alone_reach_the_oracle():
    rows = json.loads(said("compare", *SMALL, "--json"))["additive"]
    assert [row["stop"] for row in rows] == ["CONVERGED", "CONVERGED"]
    assert rows[0]["off_oracle"] < 1e-3
    assert rows[1]["off_oracle"] < 1e-8
    assert all(row["rounds"] <= 60 for row in rows)


def test_a_run_tells_rounds_noise_and_errors():
    text = said("run", *SMALL[:-2])  # the default objective
    for word in ("tuning 6", "final solve", "certificate", "dense oracle", "label noise", "alone", "joined"):
        assert word in text
    last = json.loads(said("run", *SMALL, "--json").splitlines()[-1])
    assert (last["event"], last["objective"], len(last["rmse_sites"])) == ("finished", "additive", 3)
