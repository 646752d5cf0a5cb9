"""`make demo`'s own program: exit code, report, picture. Its commands run in this process, its processes are forked."""

import json
import re
import types

import pytest
from federation import PROGRAMS, ROOT, well
from processes import Process

from examples.demo import demo, federations, processes

KEYS = {
    "sites", "in_memory", "pooled", "stop", "rounds", "certified_gap", "max_abs_error_vs_closed_form", "bytes_per_round",
    "seconds",
}  # fmt: skip


@pytest.mark.e2e
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
    for module in (processes, federations):
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
    assert "<svg" in (tmp_path / "out" / "convergence.svg").read_text()
    assert (tmp_path / "out" / "errors.svg").read_text().count("<circle") == 12, "four models of three sites"
    draws = json.loads((ROOT / "examples" / "demo" / "diabetes_draws.json").read_text())
    _, _, shown = printed.partition("root mean square error on 80 held-out patients")
    assert set(report["sites"]) == {"clinic", "laboratory-1", "laboratory-2"}
    columns = ("mean", "local", "joined", "score")
    for site, errors in report["sites"].items():
        assert set(errors) == {*columns, "forecast", "recommended"}
        at = next(i for i, line in enumerate(shown.splitlines()) if line.split()[:1] == [site])
        row, memory, means = shown.splitlines()[at : at + 3]
        assert numbers_in(row) == [f"{errors[key]:.1f}" for key in columns], "the table shows what the report says"
        assert numbers_in(memory) == [f"{report['in_memory'][site][key]:.1f}" for key in ("joined", "score")]
        many = draws["deals"]["60 each"][site]
        assert numbers_in(means)[-4:] == [f"{many[key]:.1f}" for key in columns]
        change = 100 * (errors["joined"] / errors["local"] - 1)
        assert f" %, {change:+.1f} %; score " in shown, "a loss is printed as a gain is"
        assert errors["score"] == pytest.approx(report["in_memory"][site]["score"], rel=0.1), "but for the noise"
        # Every round's answer left sealed: sizes and one answer a round in coRLSR, and more in the other two.
        assert int(re.search(rf"{site} +\d+ messages \((\d+) with encrypted numbers", printed)[1]) > report["rounds"]
    together = [errors["score"] for errors in report["sites"].values()]
    assert max(together) < 1.1 * min(together), "one score for all, and own intercepts"


def numbers_in(row):
    """The errors of a row: numbers with one decimal that are no percentage."""
    return re.findall(r"(?<![-+\d.(])\d+\.\d(?! %)", row)
