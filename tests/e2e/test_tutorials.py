"""Every command of README and of the tutorials in a shell, as typed; only the port differs, and the
programs start at once (`typed_programs`).
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from federation import ROOT
from typed_programs import typed_programs

from examples.demo.processes import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
TUTORIALS = ROOT / "docs" / "tutorials"


def blocks(page):
    return re.findall(
        r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )


def shown(page):
    """The lines of the page's sample output, as patterns: … and percentages stand for what
    differs.
    """
    samples = re.findall(
        r"^```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    lines = [line for sample in samples for line in sample.splitlines()]
    differs = re.compile(r"…| *[+-]?[\d.]+(?= %)|± [\d.]+|\d+(?= simulated)")
    return [".*".join(map(re.escape, differs.split(line))) for line in lines if line.strip(" …")]


def typed(blocks, folder):
    """Run the blocks in one shell, which ends at the first command that fails; its output."""
    script = "set -euo pipefail\n" + "\n".join(blocks).replace(
        "init fed", f"init fed --port {free_port()}"
    )
    script = script.replace("examples/demo/tables.py", str(ROOT / "examples/demo/tables.py"))
    env = {name: value for name, value in os.environ.items() if not name.startswith("COREG_")}
    with (
        tempfile.TemporaryDirectory() as programs,
        typed_programs(Path(programs)) as variables,
        (folder / "typed.log").open("w+") as log,
    ):
        env |= variables
        command = ["bash", "-c", script]
        shell = subprocess.Popen(
            command, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = shell.wait()
        finally:
            subprocess.run(
                ["pkill", "-KILL", "-s", str(shell.pid)], check=False
            )  # what a failed script left behind
        log.seek(0)
        said = log.read()
    assert code == 0, f"exit code {code}\n{said[-4000:]}"
    return said


def commands(block):
    """How many commands of coreg a block runs: those of a loop once for each site."""
    loops = re.findall(r"for site in ([^;]+); *do(.*?)done", block, re.DOTALL)
    more = sum((len(sites.split()) - 1) * body.count("coreg-agent ") for sites, body in loops)
    return len(re.findall(r"coreg-(?:agent|coordinator|sim) ", block)) + more


def using_the_model(port):
    """The commands of use-a-model.md in the clinic's folder of the quickstart; a scoring has
    commands at every site.
    """
    page = ROOT / "docs" / "how-to" / "use-a-model.md"
    scoring = re.search(
        r"^```toml\n(# scoring.toml\n.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )[1]
    report, evaluate, serve, export, _services, (coordinator, site), _on_demand = (
        block.splitlines() for block in blocks(page)
    )
    listen, curl = (line.replace("8080", str(port)) for line in serve)
    script = [
        "cp ../clinic-held-out.csv new.csv; cp ../clinic-judged.csv held-back.csv",
        *report,
        *evaluate,
        *export,
    ]
    script += ["coreg-agent report --plot report.svg"]
    if shutil.which("curl"):
        curl = curl.replace("curl", "curl -sS --fail --retry 30 --retry-connrefused")
        script += [f"{listen} & server=$!", curl, "kill $server"]
    script += [
        f"cd ..; cat > scoring.toml <<'end'\n{scoring}end",
        f"{coordinator} > scoring.log 2>&1 &",
    ]
    for name in ("clinic", "laboratory-1", "laboratory-2"):
        score = f"(cd {name} && {site} --yes --accept-words) > {name}/score.log 2>&1 &"
        script += [f"cp {name}-held-out.csv {name}/new.csv", score]
    return [*script, "wait"]


def test_the_quickstart_and_the_use_of_its_model_run_as_typed(tmp_path):
    """Without its installation; at most ten commands of coreg for three sites."""
    quickstart = blocks(TUTORIALS / "quickstart.md")
    assert quickstart[0].startswith("make install\n"), "the suite's own environment has it"
    assert sum(map(commands, quickstart[1:5])) <= 10, "to the report"
    said = typed([*quickstart[1:], *using_the_model(free_port())], tmp_path)
    assert [line for line in shown(TUTORIALS / "quickstart.md") if not re.search(line, said)] == []
    assert (tmp_path / "quickstart" / "clinic" / "predictions.csv").read_text().count("\n") == 81, (
        "for each patient"
    )
    found = [path.parts[-3] for path in (tmp_path / "quickstart").glob("*/models/*/*/scores.csv")]
    studies = ("additive", "scoring", "waiting-times-scores")
    assert sorted(found) == [study for study in studies for _ in range(3)], (
        "of the training, of the tutorial, and of use-a-model.md"
    )
    assert {"model.onnx", "report.svg"} <= {
        path.name for path in (tmp_path / "quickstart" / "clinic").iterdir()
    }
    if shutil.which("curl"):
        assert '"predictions":' in said, "of predict --listen"


def test_your_own_table_runs_as_typed(tmp_path):
    """With fewer draws, which take less time."""
    page = blocks(TUTORIALS / "your-own-table.md")
    said = typed([re.sub("--draws [0-9]+", "--draws 3", block) for block in page], tmp_path)
    assert "joined model " in said
    assert [
        line for line in shown(TUTORIALS / "your-own-table.md") if not re.search(line, said)
    ] == []
    assert "Harmed: the error is more than 2 % larger" in " ".join(said.split()), (
        "the page explains this line"
    )


def test_one_label_holder_runs_as_typed(tmp_path):
    """Sites without labels end with scores, a model and a report."""
    page = TUTORIALS / "one-label-holder.md"
    said = typed(blocks(page), tmp_path)
    assert [line for line in shown(page) if not re.search(line, said)] == []
    scores = [*tmp_path.glob("lender/*/models/*/*/scores.csv")]
    assert len(scores) == 3
    assert {path.read_text("utf-8").count("\n") for path in scores} == {251}


def test_the_commands_of_algorithm_1_run_as_typed(tmp_path):
    """Its study is saved where the page says; the closed form is near."""
    page = ROOT / "docs" / "how-to" / "train-with-algorithm-1.md"
    [study] = re.findall(r"^```toml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    tables, *others = blocks(page)
    said = typed([tables, f"cat > study.toml <<'end'\n{study}end", *others], tmp_path)
    assert [line for line in shown(page) if not re.search(line, said)] == []
    distance = re.search(r"reads all data: (\S+) standard deviations", said)[1]
    assert float(distance) < 1e-6
    folders = [path.parent for path in tmp_path.glob("paper/*/models/paper/*/model.coreg")]
    assert len(folders) == 3
    for folder in folders:
        assert len([*folder.glob("model-coupling-*.coreg")]) == 4, "one for each λ, 0 included"


def test_the_commands_of_the_readme_make_a_federation(tmp_path):
    """Three folders for three machines, which share nothing but the line of the invitation."""
    coordinator, site = [
        block.splitlines() for block in blocks(ROOT / "README.md") if "coreg-" in block
    ]
    init, run = (
        line.replace("--host fed.example.org ", "").split("   #")[0] for line in coordinator[1:]
    )
    script = [
        "python examples/demo/tables.py tables",
        init,
        f"{run} --study tables/additive.toml > coordinator.log 2>&1 &",
    ]
    names = {"clinic": "clinic", "lab-1": "laboratory-1", "lab-2": "laboratory-2"}
    for name, table in names.items():
        script.append(
            f"mkdir {name}; cp tables/{table}.csv {name}/local.csv; cp tables/{table}-held-out.csv"
            f" {name}/new.csv"
        )
        script.append(f"line=$(head -1 fed/invitations/{name})")
        script.append(f"(cd {name} && echo $line | {site[0].split('   #')[0]})")
    train, predict = (line.split("   #")[0] for line in site[1:])
    script += [f"(cd {name} && {train} --yes --accept-words) > {name}.log 2>&1 &" for name in names]
    script += ["wait", *(f"(cd {name} && {predict})" for name in names)]
    typed(script, tmp_path)
    assert all((tmp_path / name / "predictions.csv").exists() for name in names)
