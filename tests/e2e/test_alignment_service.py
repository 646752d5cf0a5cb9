"""Ids are aligned over mutual TLS by serving agents, with kills, and the next study trains on what they share."""

import csv
import json
from collections import Counter

import pytest
from federation import SITES, STUDY, as_json, federation, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
ALIGN = '[study]\nname = "{name}"\ndata = "patients"\n[model]\nobjective = "alignment"\n'


def leave_out(fed, v, site):
    """Every site lacks some of the shared rows, and one writes its ids otherwise. Returns its ids."""
    path = fed.folder / f"{site}.csv"
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file))
    rows = [row for i, row in enumerate(rows) if row[-1] or i % 7 != v]
    if site == "south":
        rows = [[f" {row[0].upper()}", *row[1:]] for row in rows]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return {row[0].strip().lower() for row in rows}


@pytest.mark.drill
def test_an_alignment_survives_kills_and_its_ids_train_the_next_study(tmp_path):
    policy = 'objectives = ["agreement"]\nalignment = true'
    with federation(tmp_path, policy) as fed:
        ids = {site: leave_out(fed, v, site) for v, site in enumerate(SITES)}
        times = Counter(text for known in ids.values() for text in known)
        shared = {text for text, k in times.items() if k == 3}
        assert 0 < len(shared) < len(times)
        fed.study("people", ALIGN)
        fed.study("waiting", STUDY)
        coordinator, stay = fed.serve(), {"data": 'shared = "people"\n'}
        agents = {site: fed.stays(site, **({} if site == "north" else stay)) for site in SITES}
        run = fed.submit("people")
        until(lambda: fed.answered(run) >= 6)
        agents["south"].kill()
        killed_at = fed.answered(run)
        agents["south"] = fed.stays("south", **stay)
        until(lambda: fed.answered(run) >= killed_at + 4)
        coordinator.kill()
        fed.serve()
        until(lambda: fed.over(run))
        assert fed.run_of(run)["stop"] == "CONVERGED", fed.last()
        for site in SITES:
            file = tmp_path / f"{site}-models" / "people" / "current" / "aligned.json"
            assert set(json.loads(file.read_text())["ids"]) == shared
            assert file.stat().st_mode & 0o777 == 0o600
            ledger = (tmp_path / site / "ledger.jsonl").read_text()
            assert "sealed for the next site" in ledger
            assert not any(text in ledger for text in ("p12", "P12")), "no id is in the ledger"

        [told] = fed.events("north", "aligned")
        assert told["ids"] == len(shared)
        assert fed.events("west", "aligned") == []
        agents["north"].kill()
        fed.stays("north", **stay)
        trained = fed.submit("waiting")
        until(lambda: fed.over(trained))
        assert fed.run_of(trained)["stop"] == "CONVERGED", fed.last()
        for site in SITES:
            ledger = as_json("coreg-agent", "ledger", f"{site}/ledger.jsonl", cwd=tmp_path)
            [offer] = [entry for entry in ledger if entry["kind"] == "Offer" and entry["run"] == trained]
            assert offer["n_unlabelled"] == len(shared)
