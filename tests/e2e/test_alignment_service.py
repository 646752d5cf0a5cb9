"""A run aligns the ids over mutual TLS by serving agents, with kills, and trains on them; the next
run has them already.
"""

import csv
import json
from collections import Counter

import pytest
from federation import SITES, STUDY, as_json, federation, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
ALIGNED = STUDY.replace("align = false", "align = true")


def leave_out(fed, v, site):
    """Every site lacks some of the shared rows, and one writes its ids otherwise. Returns its
    ids.
    """
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
    with federation(tmp_path, 'objectives = ["agreement"]') as fed:
        ids = {site: leave_out(fed, v, site) for v, site in enumerate(SITES)}
        times = Counter(text for known in ids.values() for text in known)
        shared = {text for text, k in times.items() if k == 3}
        assert 0 < len(shared) < len(times)
        fed.study("waiting", ALIGNED)
        coordinator = fed.serve()
        agents = fed.all_stay()
        run = fed.submit("waiting")
        until(lambda: fed.answered() >= 6)
        agents["south"].kill()
        killed_at = fed.answered()
        agents["south"] = fed.stays("south")
        until(lambda: fed.answered() >= killed_at + 4)
        coordinator.kill()
        fed.serve()
        until(lambda: fed.over(run))
        again = fed.submit("waiting")
        until(lambda: fed.over(again))
        aligned = {
            name.partition("-ids-")[0]
            for (name,) in fed.query("select run from runs")
            if "-ids-" in name
        }
        assert aligned == {run}, "the next run has the ids already"
        for each in (run, again):
            assert fed.run_of(each)["stop"] == "CONVERGED", fed.last()
        for site in SITES:
            [file] = (tmp_path / site / "aligned").glob("*.json")
            assert set(json.loads(file.read_text())["ids"]) == shared
            assert file.stat().st_mode & 0o777 == 0o600
            ledger = (tmp_path / site / "ledger.jsonl").read_text()
            assert "sealed for the next site" in ledger
            assert not any(text in ledger for text in ("p12", "P12")), "no id is in the ledger"
            entries = as_json("coreg-agent", "ledger", f"{site}/ledger.jsonl", cwd=tmp_path)
            offers = [
                entry
                for entry in entries
                if entry["kind"] == "Offer" and entry["run"] in (run, again)
            ]
            assert {entry["n_unlabelled"] for entry in offers} == {len(shared)}
