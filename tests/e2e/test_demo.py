"""`make demo`'s own program: exit code, report, picture. Its commands run in this process, its processes are forked."""

import itertools
import json
import types

import pytest
from federation import PROGRAMS, ROOT, well
from processes import Process

from coreg_sim.demo import demo, processes

KEYS = {
    "stop", "rounds", "certified_gap", "max_abs_error_vs_closed_form", "sites", "rmse_mean_alone",
    "rmse_mean_federated", "bytes_per_round", "seconds", "joined",
}  # fmt: skip


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_demo(tmp_path, monkeypatch, capsys):
    named, started = {module: program for program, module in PROGRAMS.items()}, []

    def run(module, *arguments, cwd):
        return well(named[module], *arguments, cwd=cwd)

    def forked(command, *, cwd, stdout, stderr):
        out = tmp_path / "shown" if stdout is None else stdout.name
        entry = command[0].removeprefix("coreg-")
        started.append(
            Process(entry, command, cwd=cwd, env={}, out=out, err=out if stderr is None else stderr.name, first="")
        )
        return started[-1]

    monkeypatch.setattr(processes, "command", lambda module, *words: [named[module], *map(str, words)])
    monkeypatch.setattr(processes, "subprocess", types.SimpleNamespace(Popen=forked))
    for module in (processes, demo):
        monkeypatch.setattr(module, "run", run)
    try:
        assert demo.main(["--output", str(tmp_path / "out")]) == 0
    finally:
        for process in started:
            process.kill()
    printed = capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert set(report) == KEYS
    assert report["stop"] == "CONVERGED"
    assert report["max_abs_error_vs_closed_form"] <= 1e-6
    assert set(report["sites"]) == {"clinic", "laboratory-1", "laboratory-2"}
    assert all(set(errors) == {"rmse_alone", "rmse_federated"} for errors in report["sites"].values())
    assert "<svg" in (tmp_path / "out" / "convergence.svg").read_text()
    for name, errors in report["sites"].items():
        # Nothing is dressed up: the table shows what the report says, and names whom the coupling does not help.
        assert f"{errors['rmse_alone']:.3f}" in printed
        helped = errors["rmse_federated"] < errors["rmse_alone"]
        [line] = [x for x in printed.splitlines() if "does not help" in x] or [""]
        assert (name in line) == (not helped)
        # Every round's answer left sealed, as the site's own ledger has it: its sizes, then one a round.
        [left] = [x for x in printed.splitlines() if x.startswith(f"  {name}: ")]
        assert f" {report['rounds'] + 1} answers sealed;" in left
    joined = report["joined"]
    assert set(joined) == set(report["sites"])
    draws = json.loads((ROOT / "coreg_sim" / "demo" / "diabetes_draws.json").read_text())
    _, _, shown = printed.partition("root mean square error on the 100 held-out patients")
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
