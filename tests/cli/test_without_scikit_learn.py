"""An installation without the extra `estimators`: both ends work, and whatever needs scikit-learn says which extra brings it."""

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("coreg_core", "coordinator", "site_agent", "coreg_sim", "proto/coreg_wire")
# As where it was never installed, whatever this environment has: the finder stands before all others.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("sklearn", "joblib", "narwhals"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
"""
SENTENCE = "needs scikit-learn: pip install '.[estimators]' in the clone of coreg.\n"


def without(code, *arguments, cwd=None):
    return subprocess.run(
        [sys.executable, "-c", WITHOUT + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=cwd,
    )


def command(module, *arguments, cwd=None):
    return without(f"from {module} import main\nmain()", *arguments, cwd=cwd)


def test_it_is_really_absent_there():
    assert "No module named 'sklearn'" in without("import sklearn").stderr


@pytest.mark.parametrize("module", ["site_agent.cli.app", "coordinator.cli.app", "coreg_sim.cli.app"])
def test_every_command_line_is_there(module):
    shown = command(module, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "Commands" in shown.stdout


def test_an_agent_reads_its_table_and_a_coordinator_states_its_plan(tmp_path):
    rows = [f"p{i},{i},{2 * i % 7},{'red' if i % 2 else 'blue'},{i if i < 12 else ''}" for i in range(30)]
    (tmp_path / "t.csv").write_text("\n".join(["id,a,b,c,y", *rows]) + "\n")
    (tmp_path / "federation.toml").write_text(
        '[federation]\nname = "x"\nsites = ["a", "b", "c"]\n[model]\ncoupling = 0.01\n'
    )
    plan = command("coordinator.cli.app", "plan", "federation.toml", cwd=tmp_path)
    assert plan.returncode == 0, plan.stderr
    (tmp_path / "plan.json").write_text(plan.stdout)
    # Columns become numbers and the plan is evaluated on them: as far as an agent gets before it dials.
    table = ("--data", "t.csv", "--target", "y", "--id", "id")
    where = ("--insecure", "--name", "a", "--coordinator", "127.0.0.1:9")
    checked = command("site_agent.cli.app", "check", *table, *where, "--plan", "plan.json", cwd=tmp_path)
    assert "12 labelled and 18 shared instances, 4 features from the columns a, b, c (2 levels)" in checked.stdout
    assert (
        "the largest share of one label of this site" in checked.stdout
    )  # computed from these rows and the plan's kernel
    assert (checked.returncode, checked.stderr) == (4, ""), "refused for want of pins, and for nothing else"
    assert checked.stdout.count("WRONG") == 1


def test_a_federation_is_simulated():
    ran = command("coreg_sim.cli.app", "run", "--sites", "3", "--unlabelled", "60")
    assert ran.returncode == 0, ran.stderr
    assert "converged" in ran.stdout


@pytest.mark.parametrize(
    "arguments",
    [("tables", "made"), ("benefit", "--data", "own.csv")],
    ids=lambda a: a[0],
)
def test_what_needs_it_says_which_extra(arguments, tmp_path):
    refused = command("coreg_sim.cli.app", *arguments, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == f"coreg-sim: {arguments[0]} {SENTENCE}"
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("module", ["coreg_core.estimators", "coreg_core.estimators.xnv"])
def test_the_library_says_which_extra_and_that_an_import_failed(module):
    said = without(f"try:\n    import {module}\nexcept ImportError as error:\n    print(error)")
    assert said.stdout == "coreg_core.estimators " + SENTENCE, said.stderr


def test_one_that_is_there_and_broken_tells_its_own_error(tmp_path):
    (tmp_path / "sklearn.py").write_text("import libgomp_of_another_world\n")
    said = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import coreg_core.estimators"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "No module named 'libgomp_of_another_world'" in said.stderr
    assert ".[estimators]" not in said.stderr


# --- what is imported is declared -----------------------------------------------------------------------------------


def normalised(requirement):
    return re.split(r"[\[<>=!~; ]", requirement)[0].lower().replace("_", "-")


def imported(package):
    """The first names of what a package imports from elsewhere, wherever in its code."""
    found = set()
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            found |= {name.partition(".")[0] for name in names}
    ours = {Path(each).name for each in PACKAGES}
    return found - ours - sys.stdlib_module_names


@pytest.mark.parametrize("package", PACKAGES)
def test_what_is_imported_is_declared_and_both_ends_need_no_extra(package):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    declared = {normalised(each) for each in project["dependencies"]}
    allowed = {
        "coreg_core": ("estimators",),
        "coordinator": ("web",),
        "coreg_sim": ("estimators", "sim"),
    }
    for extra in allowed.get(package, ()):
        declared |= {normalised(each) for each in extras[extra]}
    distributions = packages_distributions()
    for name in sorted(imported(package)):
        whose = {normalised(each) for each in distributions.get(name, [name])}
        assert whose & declared, f"{package} imports {name}, which pyproject.toml does not declare for it"
