"""Every command of README, the quickstart and the month of operation, as typed, in a shell; only the port differs."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from federation import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
TUTORIALS = ROOT / "docs" / "tutorials"
PROGRAMS = Path(sys.executable).parent  # coreg-agent and the others; its `python` too


def blocks(page):
    return re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def shown(page):
    """The lines of the page's sample output, as patterns: … and percentages stand for what differs."""
    samples = re.findall(r"^```text\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for sample in samples for line in sample.splitlines()]
    differs = re.compile(r"…| *[+-]?[\d.]+(?= %)|± [\d.]+")
    return [".*".join(map(re.escape, differs.split(line))) for line in lines if line.strip(" …")]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def typed(blocks, folder):
    """Run the blocks in one shell, which ends at the first command that fails; its output."""
    script = "set -euo pipefail\n" + "\n".join(blocks).replace("127.0.0.1:7600", f"127.0.0.1:{free_port()}")
    env = {name: value for name, value in os.environ.items() if not name.startswith("COREG_")}
    env |= {"PATH": f"{PROGRAMS}{os.pathsep}{env['PATH']}", "OPENBLAS_NUM_THREADS": "1"}
    with (folder / "typed.log").open("w+") as log:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = shell.wait()
        finally:
            subprocess.run(["pkill", "-KILL", "-s", str(shell.pid)], check=False)  # what a failed script left behind
        log.seek(0)
        said = log.read()
    assert code == 0, f"exit code {code}\n{said[-4000:]}"
    return said


def test_the_quickstart_and_the_month_run_as_typed(tmp_path):
    """The quickstart without its installation, then the month in the same folder."""
    quickstart, month = blocks(TUTORIALS / "quickstart.md"), blocks(TUTORIALS / "a-month-of-operation.md")
    assert quickstart[0].startswith("make install\n"), "the suite's own environment has it"
    said = typed([*quickstart[1:], *month], tmp_path)
    assert re.search(r"converged", said)
    for page in ("quickstart", "a-month-of-operation"):
        assert [line for line in shown(TUTORIALS / f"{page}.md") if not re.search(line, said)] == []
    assert (tmp_path / "quickstart" / "predictions.csv").read_text().count("\n") == 81, "a prediction for each patient"
    assert len(list((tmp_path / "quickstart" / "clinic" / "models" / "progression" / "current").glob("*.coreg"))) == 2


def test_your_own_table_runs_as_typed(tmp_path):
    said = typed(blocks(TUTORIALS / "your-own-table.md"), tmp_path)
    assert "joined model " in said
    assert [line for line in shown(TUTORIALS / "your-own-table.md") if not re.search(line, said)] == []
    assert "Harmed: the error is more than 2 % larger" in " ".join(said.split()), "the page explains this line"


def test_the_commands_of_the_readme_make_a_federation(tmp_path):
    """Three folders for three machines: each line of a site is typed at every site, with its name and its peers."""
    sites = ("clinic", "laboratory-1", "laboratory-2")
    [lines] = [block.splitlines() for block in blocks(ROOT / "README.md") if "coreg-" in block]
    script = ["coreg-sim tables tables"]
    _installed, init, enroll, sign, install, policy, pin, check, serve, train, report, predict = lines
    sites_of = f"s/^sites = .*/sites = {json.dumps(sites)}/"
    script += [init, f"sed -i '{sites_of}; s/0.0.0.0:7600/127.0.0.1:7600/' federation/federation.toml"]

    def at(site, line):
        """A line of the page as the operator of another site types it."""
        own = line.replace(
            "laboratory-1.pem laboratory-2.pem", " ".join(f"../federation/{p}.pem" for p in sites if p != site)
        )
        own = own.replace("--target y", "--target progression").replace(
            "--install clinic.pem", f"--install ../federation/{site}.pem"
        )
        return f"(cd {site} && {re.sub(r'(?<![./])clinic', site, own.split('   #')[0])})"

    for site in sites:
        script += [f"mkdir {site}; cp tables/{site}.csv {site}/local.csv; cp tables/{site}-held-out.csv {site}/new.csv"]
        script += [
            at(site, enroll),
            f"cp {site}/identity/site.csr {site}.csr",
            re.sub("site.csr", f"{site}.csr", sign),
            at(site, install),
        ]
    script += [at(site, line) for line in (policy, pin, check) for site in sites]
    script += [
        f"{serve.split('   #')[0]} > coordinator.log 2>&1 &",
        *(f"{at(site, train)} > {site}.log 2>&1 &" for site in sites),
        "wait",
    ]
    script += [at(site, line) for line in (report, predict) for site in sites]
    local = [line.replace("coordinator.example.org:7600", "127.0.0.1:7600") for line in script]
    typed(local, tmp_path)
    assert all((tmp_path / site / "predictions.csv").exists() for site in sites)
