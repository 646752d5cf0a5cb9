"""The files that both `init` commands write, used as they are: three sites train together under the preset "partners"."""

import csv

import numpy as np
import pytest
from federation import until, well
from processes import Process

pytestmark = pytest.mark.e2e
SITES = ("site-a", "site-b", "site-c")  # of the sample federation.toml


def table(path, X, y, v):
    """60 shared instances, and 15 labelled ones of this site."""
    own = range(60 + 15 * v, 75 + 15 * v)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", f"a{v}", f"b{v}", "y"])
        writer.writerows([f"p{i}", *X[i, 2 * v : 2 * v + 2], ""] for i in range(60))
        writer.writerows([f"p{i}", *X[i, 2 * v : 2 * v + 2], y[i]] for i in own)


def test_the_starter_files_fit_together_and_a_federation_runs_from_them(tmp_path):
    well("coreg-coordinator", "init", "co", cwd=tmp_path)
    X = np.random.default_rng(3).normal(size=(105, 6))
    for v, site in enumerate(SITES):
        (folder := tmp_path / site).mkdir()
        well("coreg-agent", "init", "--preset", "partners", cwd=folder)
        well("coreg-agent", "enroll", "--name", site, cwd=folder)
        well("coreg-coordinator", "sign", "--identity", "../co", "identity/site.csr", cwd=folder)
        well("coreg-agent", "enroll", "--install", f"../co/{site}.pem", cwd=folder)
        table(folder / "local.csv", X, X.sum(axis=1), v)
    for site in SITES:
        others = [f"../co/{other}.pem" for other in SITES if other != site]
        well("coreg-agent", "peers", "--pin", "--write", "policy.toml", *others, cwd=tmp_path / site)
    # A site knows its own key: its line of [peers] can be absent, or of an earlier key.
    without, earlier = (tmp_path / site / "policy.toml" for site in SITES[:2])
    own = next(line for line in without.read_text().splitlines() if line.startswith(f"{SITES[0]} = "))
    without.write_text(without.read_text().replace(f"{own}\n", ""))
    pin = next(line for line in earlier.read_text().splitlines() if line.startswith(f"{SITES[1]} = "))
    earlier.write_text(earlier.read_text().replace(pin, f'{SITES[1]} = "{64 * "0"}"'))
    told = well("coreg-agent", "peers", "--policy", "policy.toml", cwd=earlier.parent)
    assert f"{SITES[1]} (this site: you read these words): not pinned" in told
    plan = tmp_path / "plan.json"
    plan.write_text(well("coreg-coordinator", "plan", "co/federation.toml", cwd=tmp_path))

    def start(name, cwd, *words):
        files = {"out": tmp_path / f"{name}.out", "err": tmp_path / f"{name}.err"}
        return Process(words[0].removeprefix("coreg-"), list(words), cwd=cwd, env={}, **files)

    # A free port instead of the file's: other tests run beside this one.
    free = ("--listen", "127.0.0.1:0", "--port-file", "port", "--json")
    started = [start("coordinator", tmp_path, "coreg-coordinator", "run", "co/federation.toml", *free)]
    try:
        until(lambda: (tmp_path / "port").exists() and (tmp_path / "port").read_text().endswith("\n"))
        address = f"127.0.0.1:{int((tmp_path / 'port').read_text())}"
        for site in SITES:
            words = ("--config", "agent.toml", "--coordinator", address)
            assert "would take part" in well("coreg-agent", "check", *words, "--plan", plan, cwd=tmp_path / site)
            started.append(start(site, tmp_path / site, "coreg-agent", *words))
        said = "".join(path.read_text() for path in tmp_path.glob("*.err"))
        assert [process.wait() for process in started] == [0, 0, 0, 0], said
    finally:
        for process in started:
            process.kill()
    assert {path.name for site in SITES for path in (tmp_path / site).glob("*.coreg")} == {
        "model.coreg",
        "model-local.coreg",
    }
