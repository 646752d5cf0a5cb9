"""`make demo`'s own program: exit code, report, picture."""

import itertools
import json
import subprocess
import sys

import pytest
from federation import ENVIRONMENT, ROOT

KEYS = {
    "stop", "rounds", "certified_gap", "max_abs_error_vs_closed_form", "sites", "rmse_mean_alone",
    "rmse_mean_federated", "bytes_per_round", "seconds", "joined",
}  # fmt: skip


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_demo(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "coreg_sim.demo.demo", "--output", tmp_path / "out"], cwd=ROOT, env=ENVIRONMENT,
        capture_output=True, text=True, timeout=380, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report) == KEYS
    assert report["stop"] == "CONVERGED"
    assert report["max_abs_error_vs_closed_form"] <= 1e-6
    assert set(report["sites"]) == {"clinic", "laboratory-1", "laboratory-2"}
    assert all(set(errors) == {"rmse_alone", "rmse_federated"} for errors in report["sites"].values())
    assert "<svg" in (tmp_path / "out" / "convergence.svg").read_text()
    for name, errors in report["sites"].items():
        # Nothing is dressed up: the table shows what the report says, and names whom the coupling does not help.
        assert f"{errors['rmse_alone']:.3f}" in done.stdout
        helped = errors["rmse_federated"] < errors["rmse_alone"]
        [line] = [x for x in done.stdout.splitlines() if "does not help" in x] or [""]
        assert (name in line) == (not helped)
        # Every round's answer left under masks, as the site's own ledger has it, and none in the clear.
        [left] = [x for x in done.stdout.splitlines() if x.startswith(f"  {name}: ")]
        assert f", {report['rounds']} Masked, " in left
        assert f" {report['rounds']} answers masked;" in left
        assert "Prediction" not in left
    joined = report["joined"]
    assert set(joined) == set(report["sites"])
    draws = json.loads((ROOT / "coreg_sim" / "demo" / "diabetes_draws.json").read_text())
    _, _, shown = done.stdout.partition("root mean square error on the 100 held-out patients")
    for site, errors in joined.items():
        assert set(errors) == {"rmse_alone", "rmse_agreement", "rmse_joined", "rmse_together", "forecast"}
        row, means = next((a, b) for a, b in itertools.pairwise(shown.splitlines()) if a.split()[:1] == [site])
        told = [f"{errors[key]:.1f}" for key in ("rmse_alone", "rmse_agreement", "rmse_joined", "rmse_together")]
        assert row.split()[1:5] == told, "the table shows what the report says"
        many = draws["deals"]["15 each"][site]
        assert [f"{many[key]:.1f}" for key in ("alone", "agreement", "joined", "together")] == means.split()[4:8]
        paid = f"{site}: learning together paid" in shown
        assert paid == (errors["rmse_joined"] < errors["rmse_alone"]), "nothing is dressed up here either"
    assert len({errors["rmse_together"] for errors in joined.values()}) == 1, "one score for all"
