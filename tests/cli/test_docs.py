"""The documentation says what the programs do: generated parts are fresh, links lead somewhere, commands parse, examples run."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import typer.main
from jsonschema import Draft7Validator

import coordinator.cli.app
import coreg_sim.cli.app
import site_agent.cli.app
from coordinator.service.create import SAMPLE
from coreg_core.agreement.views import make_view
from coreg_core.kernels.bases import EveryPoint, LabelledPoints
from coreg_core.kernels.functions import Gaussian

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = {
    "coreg-coordinator": typer.main.get_command(coordinator.cli.app.app),
    "coreg-agent": typer.main.get_command(site_agent.cli.app.app),
    "coreg-sim": typer.main.get_command(coreg_sim.cli.app.app),
}


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def anchors(page):
    """Headings as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


# --- generated parts ----------------------------------------------------------------------------------------------


def test_generated_parts_are_fresh():
    command = [sys.executable, ROOT / "tools" / "docs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def kind_of(text, read):
    """Which of the four files a TOML example is of."""
    if named := re.match(r"#:schema \./schemas/(\w+)\.json", text):
        return named[1]
    if "federation" in read or "study" in read:
        return "federation" if "federation" in read else "study"
    return "agent" if {"data", "coordinator"} & read.keys() else "policy"


def toml_texts():
    yield pytest.param(SAMPLE, id="the sample of `coreg-coordinator init`")
    for path in sorted((ROOT / "deploy").glob("*.toml")):
        yield pytest.param(path.read_text(), id=path.name)
    for page in (page for page in PAGES if page.parent.name in ("how-to", "reference", "tutorials")):
        for number, block in enumerate(blocks(page, "toml")):
            yield pytest.param(block, id=f"{page.stem} {number}")


def schema_faults(kind, read):
    schema = json.loads((ROOT / "docs" / "reference" / "schemas" / f"{kind}.json").read_text())
    Draft7Validator.check_schema(schema)
    return [error.message for error in Draft7Validator(schema).iter_errors(read)]


@pytest.mark.parametrize("text", [*toml_texts()])
def test_toml_files_and_examples_follow_their_schema(text):
    read = tomllib.loads(text)
    kind = kind_of(text, read)
    faults = schema_faults(kind, read)
    assert [fault for fault in faults if read] == []  # a block that only names its schema holds no keys
    assert any("unknown" in fault for fault in schema_faults(kind, {**read, "unknown": 1}))


@pytest.mark.parametrize("kind", ["federation", "study", "agent", "policy"])
def test_a_schema_describes_every_key(kind):
    """An editor shows the description of a key."""
    schema = json.loads((ROOT / "docs" / "reference" / "schemas" / f"{kind}.json").read_text())
    sections = schema.get("definitions") or {kind: schema}
    keys = [key for section in sections.values() for key in section["properties"].items()]
    assert len(keys) >= 9
    assert [key for key, shape in keys if not shape.get("description")] == []


# --- links and commands -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_pages_that_the_code_names_exist():
    packages = ("coordinator", "coreg_core", "coreg_federation", "coreg_sim", "proto", "site_agent")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    named = {(path.name, name) for path in files for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())}
    assert len(named) > 5
    assert [(file, name) for file, name in sorted(named) if not (ROOT / name).exists()] == []


# Names of other packages that pages mention beside ours.
OTHERS = {
    "CalibratedClassifierCV", "TransformedTargetRegressor", "BaggingRegressor", "StackingRegressor",
    "additiveregressor__label_mask", "cross_val_predict", "neg_root_mean_squared_error", "ss_glm_train",
    "CERTIFICATE_VERIFY_FAILED", "HTTPS_PROXY", "PIP_INDEX_URL", "allowed_signers",
}  # fmt: skip
OURS = re.compile(r"\.(py|toml|proto|ya?ml|html|json|css|txt|svg|service|sh)$|^(Makefile|deploy/|\.ci/|\.github/)")


@cache
def names_of_the_code():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    ours = [ROOT / name for name in tracked if OURS.search(name) and not name.startswith("tests/cli/test_docs")]
    text = "\n".join(path.read_text(errors="replace") for path in ours if path.exists())
    return set(re.findall(r"[A-Za-z_]\w*", text)), {name for name in tracked if name}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda p: p.stem)
def test_no_page_names_what_is_gone(page):
    """`snake_case`, `CamelCase` and `paths/to.py` in the text are names of the code, or of another package (OTHERS)."""
    names, files = names_of_the_code()
    for span in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        for name in re.findall(r"[A-Za-z_]\w*", "" if "/" in span else span):
            if "_" in name.strip("_") or re.match(r"[A-Z][a-z]+[A-Z]", name):
                exported = re.match(r"coreg_\w+_(total|under_way)$|COREG_[A-Z_]+$", name)  # other tests have these
                metric = name.removeprefix("coreg_")
                assert name in names or metric in names or name in OTHERS or exported, f"{page.name}: `{span}`"
        if re.fullmatch(r"[\w./-]+/[\w.-]+\.(py|proto|sh)", span) and "NAME" not in span:
            assert any(file.endswith(span) for file in files), f"{page.name}: `{span}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_tests_that_are_pointed_to_exist(page):
    for path, name in re.findall(
        r"`(?:tests/core/)?((?:tests/)?[\w/]*test_\w+\.py|tests/\w+)(?:::(\w+))?`", page.read_text()
    ):
        [found] = [p for p in (ROOT / path, ROOT / "tests" / "core" / path) if p.exists()]
        assert not name or f"def {name}(" in found.read_text(), f"{page.name}: {path}::{name}"


def test_the_two_commands_are_make_targets():
    assert {"`make demo`", "`make test`"} <= set(re.findall("`.+?`", README.read_text()))
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(
            r"\bmake (\w+)", " ".join([*blocks(page, "sh"), *re.findall("`.+?`", page.read_text())])
        ):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


def test_make_runs_only_benchmarks_that_exist():
    rules = (ROOT / "Makefile").read_text()
    loops = re.findall(r"for each in ([\w ]+); do", rules)
    named = [*" ".join(loops).split(), *re.findall(r"benchmarks/(\w+)\.py", rules)]
    assert len(named) > 12
    assert [name for name in named if not (ROOT / "benchmarks" / f"{name}.py").exists()] == []


def test_every_page_is_in_the_site():
    named = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    made = {"changes.md", "examples/index.md", "research/attacks/index.md"}  # by tools/site_hooks.py
    assert sorted(set(named) - made) == sorted(
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    )


def fenced_commands():
    for page in (page for page in PAGES if page.name != "CHANGELOG.md"):
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                line = re.split(r"\s>>?\s", line)[0]  # where it goes is the shell's business
                if (words := shlex.split(line, comments=True)) and words[0] in PROGRAMS and "--version" not in words:
                    yield pytest.param(words, id=f"{page.stem}: {' '.join(words[:2])}")


@pytest.mark.parametrize("words", [*fenced_commands()])
def test_every_command_line_parses(words, monkeypatch):
    for name in [name for name in os.environ if name.startswith("COREG_")]:
        monkeypatch.delenv(name)
    group = PROGRAMS[words[0]]
    if words[1] in group.commands:
        group.commands[words[1]].make_context(words[1], words[2:])
    else:
        assert words[1].startswith("--"), f"{words[0]} has no command {words[1]!r}"
        group.make_context(words[0], words[1:])


def test_the_readme_has_the_commands_of_a_real_run():
    lines = [shlex.split(line, comments=True) for block in blocks(README, "sh") for line in block.splitlines()]
    assert len(lines) <= 15, "a quickstart"
    real = [" ".join(w[:2]) for w in lines if w and w[0] in ("coreg-coordinator", "coreg-agent")]
    needed = ["coreg-coordinator init", "coreg-coordinator run", "coreg-agent join", "coreg-agent --data"]
    assert [each for each in real if each in needed] == needed


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_commands_and_options_in_the_text_exist(page):
    every = {"--help", "--version", *(opt for _, opts in all_options() for opt in opts)}
    for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text()):
        words = span.split()
        if words[0] in PROGRAMS and len(words) > 1 and not words[1].startswith("--"):
            assert words[1].rstrip(",.") in PROGRAMS[words[0]].commands, f"{page.name}: `{span}`"
        if words[0] in PROGRAMS or words[0].startswith("--"):
            for option in re.findall(r"--[a-z][a-z-]*", span):
                assert option in every or option in {"--build", "--write", "--check", "--fetch"}, (
                    f"{page.name}: `{span}`"
                )


def all_options():
    for group in PROGRAMS.values():
        for command in (group, *group.commands.values()):
            yield command, [opt for parameter in command.params for opt in parameter.opts]


def test_every_environment_variable_exists():
    known = {parameter.envvar for command, _ in all_options() for parameter in command.params}
    for page in PAGES:
        for name in re.findall(r"`(COREG_[A-Z_]+)`", page.read_text()):
            assert name in known, f"{page.name}: {name}"


# --- examples and claims ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", [EveryPoint(), LabelledPoints()], ids=["exact", "semi-parametric"])
def test_every_answer_is_a_function_of_m0_and_S(span):
    """The bound on what any number of questions can reveal (privacy.md, "Agreement"), and the two ways to ask for it."""
    rng = np.random.default_rng(0)
    X, y, Z = rng.normal(size=(12, 2)), rng.normal(size=12), rng.normal(size=(7, 2))
    view = make_view(span, Gaussian(3.0), X, y, Z, 0.5)
    identity, one = np.eye(7), np.ones(7)
    m0 = view.respond(np.zeros((7, 1)), np.array([0.0]))
    S = np.linalg.inv(identity - view.respond(identity, one, "linear")) - identity  # m linear columns at μ = 1
    for mu in (0.1, 3.0):
        t = rng.normal(size=(7, 1))
        B = identity + mu * S
        np.testing.assert_allclose(
            view.respond(t, np.array([mu])), t - np.linalg.solve(B, t - m0), rtol=1e-9, atol=1e-9
        )
        linear = view.respond(t, np.array([mu]), "linear")
        np.testing.assert_allclose(linear, t - np.linalg.solve(B, t), rtol=1e-9, atol=1e-9)


def test_the_benefit_page_is_of_a_full_study_of_the_sets_that_no_choice_saw():
    from benchmarks.benefit.study import JUDGED_ON

    run = json.loads((ROOT / "benchmarks" / "results" / "benefit" / "benefit.json").read_text(encoding="utf-8"))
    assert set(run["sets"]) == set(JUDGED_ON)


def test_the_page_of_the_papers_names_every_experiment_and_each_has_its_tables():
    from benchmarks.papers.runner import NAMES

    page = (ROOT / "docs" / "research" / "papers.md").read_text(encoding="utf-8")
    for name in NAMES:
        assert f"| `{name}` |" in page
        assert (ROOT / "benchmarks" / "results" / "papers" / f"{name}.txt").exists()


def test_the_readme_is_short():
    lines = README.read_text().splitlines()
    assert len(lines) <= 90
    assert all(len(line) <= 100 or line.startswith("|") for line in lines)


def test_the_page_of_drills_lists_every_drill():
    """`make faults` writes it; a new drill needs a new run."""
    module = runpy.run_path(str(ROOT / "tools" / "faults.py"))
    named = {name for path in (ROOT / "tests" / "e2e").glob("test_*.py") for name in module["drills"](path.read_text())}
    page = (ROOT / "docs" / "research" / "reliability.md").read_text()
    listed = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \| \d+ \|$", page, re.MULTILINE)
    assert {name for name, _, _ in listed} == {module["sentence"](name) for name in named}
    assert all(int(times) > 0 and times == held for _, times, held in listed)


def test_the_page_of_the_papers_counts_its_entries():
    text = (ROOT / "docs" / "research" / "papers.md").read_text()
    rows = Counter(re.findall(r"^\| [^|]+ \| (done|partial|not done|impossible) \|", text, re.MULTILINE))
    lead = " ".join(text.split("\n\n")[1].split())
    counts = {kind: f"{count} {'is' if count == 1 else 'are'} {kind}" for kind, count in rows.items()}
    *others, last = [counts[kind] for kind in ("done", "partial", "not done", "impossible") if kind in counts]
    assert f"{rows.total()} entries below, {', '.join(others)} and {last}" in lead
