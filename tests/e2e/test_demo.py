"""`make demo`'s own program: exit code, report, pictures.

Its commands run in this process, its processes are forked.
"""

import json
import re
import types

import pytest
from federation import PROGRAMS, well
from processes import Process

from examples.demo import demo, processes


@pytest.mark.e2e
def test_demo(tmp_path, monkeypatch, capsys):
    named, started = {module: program for program, module in PROGRAMS.items()}, []

    def run(module, *arguments, cwd):
        return well(named[module], *arguments, cwd=cwd)

    def forked(command, *, cwd, stdout, stderr):
        out = tmp_path / "shown" if stdout is None else stdout.name
        entry = command[0].removeprefix("coreg-")
        started.append(
            Process(
                entry,
                command,
                cwd=cwd,
                env={},
                out=out,
                err=out if stderr is None else stderr.name,
                first="",
            )
        )
        return started[-1]

    monkeypatch.setattr(
        processes, "command", lambda module, *words: [named[module], *map(str, words)]
    )
    monkeypatch.setattr(processes, "subprocess", types.SimpleNamespace(Popen=forked))
    for module in (processes, demo):
        monkeypatch.setattr(module, "run", run)
    try:
        assert demo.main(["--output", str(tmp_path / "out")]) == 0
    finally:
        for process in started:
            process.kill()
    printed = capsys.readouterr().out
    assert printed.count("\n") <= 60
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    for study, name in demo.SOLVERS.items():
        assert (report[study]["stop"], report[study]["off"] <= 1e-6) == ("CONVERGED", True)
        assert name in (tmp_path / "out" / "convergence.svg").read_text()
    sweeps = [
        line.split()
        for line in printed.splitlines()
        if re.fullmatch(r"\d+ +[\de+-]+.*", line.strip())
    ]
    assert [int(row[0]) for row in sweeps][:-1] == [1, 2, 5, 10]
    assert (
        int(sweeps[-1][0])
        >= report["algorithm-1"]["rounds"]
        > report["conjugate-gradients"]["rounds"]
        > 5
    )
    assert set(report["sites"]) == {"clinic", "laboratory-1", "laboratory-2"}
    assert (tmp_path / "out" / "errors.svg").read_text().count("<circle") == 3 * len(demo.COLUMNS)
    for site, errors in report["sites"].items():
        row = next(line for line in printed.splitlines() if line.split()[:1] == [site])
        shown = re.findall(r"(?<![-+\d.(])\d+\.\d(?! %)", row)
        assert shown == [f"{errors[key]:.1f}" for key in demo.COLUMNS], (
            "the table shows what the report says"
        )
        assert f"({100 * (errors['joined'] / errors['local'] - 1):+.1f} %)" in row, (
            "a loss is printed as a gain is"
        )
        assert errors["score"] < errors["local"] < errors["mean"]
        sealed = re.search(rf"{site} +\d+ messages, (\d+) of them with encrypted numbers", printed)[
            1
        ]
        assert int(sealed) > report["algorithm-1"]["rounds"]
    together = [errors["score"] for errors in report["sites"].values()]
    assert max(together) < 1.3 * min(together), (
        "one score for all, corrected by own labels; secrets are random"
    )
