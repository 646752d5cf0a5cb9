"""`make demo`'s own program: exit code, report, pictures.

Its commands run in this process, its processes are forked.
"""

import json
import re
import types
from pathlib import Path

import pytest
from federation import PROGRAMS, well
from processes import Job, Process

from examples.demo import demo, draws, processes, shown


@pytest.mark.e2e
def test_demo(tmp_path, monkeypatch, capsys):
    named = {module: program for program, module in PROGRAMS.items()}
    started = []

    def run(module, *arguments, cwd):
        return well(named[module], *arguments, cwd=cwd)

    def forked(command, *, cwd, stdout, stderr):
        out = tmp_path / "shown" if stdout is None else stdout.name
        err = out if stderr is None else stderr.name
        started.append(Process(Job(command, cwd, out, err)))
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
    for study, name in shown.SOLVERS.items():
        assert report[study]["stop"] == "CONVERGED"
        assert report[study]["off"] <= 1e-6
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
    assert (tmp_path / "out" / "errors.svg").read_text().count("<circle") == 3 * len(shown.COLUMNS)
    for site, errors in report["sites"].items():
        lines = printed.splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith(f"{site}, this draw"))
        row = lines[at]
        for line, values in ((row, errors), (lines[at + 1], report["means"][site])):
            printed_errors = re.findall(r"(?<![-+\d.(])\d+\.\d(?! %)", line)
            assert printed_errors == [f"{values[key]:.1f}" for key in shown.COLUMNS], (
                "the table shows what the report says"
            )
        assert f"({100 * (errors['joined'] / errors['local'] - 1):+.1f} %)" in row, (
            "a loss is printed as a gain is"
        )
        sealed = re.search(rf"{site} +\d+ messages, (\d+) of them with encrypted numbers", printed)[
            1
        ]
        assert int(sealed) > report["algorithm-1"]["rounds"]
    for hospital in report["hospitals"].values():
        assert hospital["corlsr"] < 0.98 * hospital["ridge"], "there coRLSR is useful"
        assert hospital["better"] > draws.DRAWS / 2
    together = [errors["score"] for errors in report["sites"].values()]
    alone = [errors["local"] for errors in report["sites"].values()]
    assert sum(together) < sum(alone), "of the sites together: each training draws its own noise"
    assert max(together) < 1.3 * min(together), (
        "one score for all, corrected by own labels; secrets are random"
    )


def test_a_table_of_the_demonstration_has_at_most_six_columns():
    """It had eight, with two names for a model alone."""
    assert 1 + len(shown.COLUMNS) <= 6
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    for name in ("local model", "joined model", "score", "coRLSR"):
        assert name in readme
        assert name in shown.COLUMNS.values()


def test_the_means_of_the_additive_method_are_those_of_the_readme():
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    count, recorded = draws.recorded()
    assert f"means of {count} draws" in readme
    for site, found in recorded.items():
        row = next(line for line in readme.splitlines() if line.startswith(f"| {site} |"))
        for key in ("joined", "score"):
            without_errors = re.sub(r" ± [\d.]+", "", row)
            assert shown.cell(found, key).replace("+", "") in without_errors.replace("+", "")
