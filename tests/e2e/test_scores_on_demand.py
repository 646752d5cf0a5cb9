"""Scores on demand over mutual TLS: a standing plan, three agents that serve, and a program that
asks one of them.
"""

import http.client
import json
import socket
from contextlib import closing

import pytest
from federation import ADDITIVE, SERVING, SITES, as_json, federation, run, until, well

pytestmark = pytest.mark.e2e
ALIGNED = ADDITIVE.replace("align = false", "align = true")
STANDING = """
[study]
name = "{name}"
data = "patients"
[model]
objective = "scoring"
standing = true
"""
POLICY = 'objectives = ["additive"]\nscores_a_day = 40'


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def asked(port, ids, host="127.0.0.1", kind="application/json"):
    body = ids
    if isinstance(ids, list):
        body = json.dumps({"ids": ids})
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("POST", "/score", body, {"host": host, "content-type": kind})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def add_record(folder, site, name):
    path = folder / f"{site}.csv"
    path.write_text(path.read_text() + f"{name},0.1,0.2,0.3,\n")


def lines_of(folder, site, kind):
    ledger = as_json("coreg-agent", "ledger", f"{site}/ledger.jsonl", cwd=folder)
    return [entry for entry in ledger if entry["kind"] == kind]


def the_terminal_prints_the_same(folder, score):
    config = ("--config", "north.toml")
    out = well("coreg-agent", "score", "--ids", "p1,only-north", *config, cwd=folder)
    first, second = out.splitlines()[:2]
    assert first.startswith(f"p1  {score:.6g}  ")
    assert second.endswith("(joined model)")
    assert run("coreg-agent", "score", "--ids", "nobody", *config, cwd=folder)[0] == 4


def what_is_refused_sends_nothing(folder, port):
    before = len(lines_of(folder, "north", "Wanted"))
    assert asked(port, ["nobody"])[0] == 422
    assert asked(port, ["p1"], host="evil.example.org")[0] == 421
    assert asked(port, ["p1"], kind="text/plain")[0] == 415
    assert asked(port, "{}")[0] == 400
    assert asked(port, ["only-north"])[0] == 200, "without another site"
    assert len(lines_of(folder, "north", "Wanted")) == before


def test_one_agent_asks_for_the_scores_of_single_individuals(tmp_path):
    with federation(tmp_path, POLICY) as fed:
        port = free_port()
        add_record(tmp_path, "north", "only-north")
        fed.serve()
        fed.stays("north", more=f'listen = "127.0.0.1:{port}"\napproval = "ask"')
        fed.stays("south")
        west = fed.stays("west")

        def approved(study):
            of_run = fed.submit(study)
            config = ("--config", "north.toml")
            pending = ("coreg-agent", "pending", *config)
            until(lambda: run(*pending, cwd=tmp_path)[0] == 0)  # the agent is up
            until(lambda: as_json(*pending, cwd=tmp_path))
            well("coreg-agent", "approve", of_run, *config, cwd=tmp_path)
            until(lambda: fed.over(of_run))
            assert fed.run_of(of_run)["stop"] == "CONVERGED", fed.last("north")
            return of_run

        fed.study("parts", ALIGNED, model="")
        training = approved("parts")
        assert asked(port, ["p1"])[0] == 422, "no plan stands yet"
        fed.study("now", STANDING)
        approved("now")

        # The operator approved the plan once: nobody is asked again.
        assert "standing study now: its runs need no further approval" in well(
            "coreg-agent", "status", "--config", "north.toml", cwd=tmp_path
        )
        status, answer = asked(port, ["p1", "p2", "only-north"])
        assert status == 200, answer
        assert answer["study"] == "now"
        assert answer["model"] == training
        assert answer["interval"] == 0.9
        first, second, alone = answer["scores"]
        assert first["sites"] == list(SITES)
        assert first["from"] == "sites"
        assert first["low"] < first["score"] < first["high"]
        assert alone["sites"] == []
        assert alone["from"] == "joined model"
        [again] = asked(port, ["p2"])[1]["scores"]
        assert abs(again["score"] - second["score"]) < 1e-9, "the same noise"

        # What every site noted: how many individuals, and who asked; the coordinator has no id.
        for site in SITES:
            noted = [
                (line["by"], line["individuals"]) for line in lines_of(tmp_path, site, "Asked")
            ]
            assert noted == [("north", 2), ("north", 1)]
        everything = (tmp_path / "coordinator.err").read_text()
        assert "only-north" not in everything + (tmp_path / "south.err").read_text()

        the_terminal_prints_the_same(tmp_path, first["score"])
        what_is_refused_sends_nothing(tmp_path, port)

        # A site is away, and the plan needs three.
        west.kill()
        west.wait()
        status, answer = asked(port, ["p1"])
        assert status == 409, answer
        assert "no score" in answer["error"], answer
        fed.stays("west")
        until(lambda: asked(port, ["p1"])[0] == 200)

        # More than scores_a_day: the other sites answer nothing more today.
        _, answer = asked(port, [f"p{i}" for i in range(41)])
        assert {row["from"] for row in answer["scores"]} == {"joined model"}


def test_an_agent_answers_this_machine_alone(tmp_path):
    with federation(tmp_path, POLICY) as fed:
        fed.address = "127.0.0.1:1"
        text = SERVING.format(
            address=fed.address, site="south", policy="policy.toml", more='listen = "0.0.0.0:7610"'
        )
        (tmp_path / "south.toml").write_text(text)
        code, _, err = run("coreg-agent", "serve", "--config", "south.toml", cwd=tmp_path)
        assert code == 2, err
        assert "listen 0.0.0.0:7610: a loopback address only" in err, err
