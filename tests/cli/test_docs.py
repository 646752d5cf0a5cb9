"""The documentation says what the programs do: generated parts are fresh, links lead somewhere,
commands parse, examples run.
"""

import ast
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import typer.main
import yaml
from jsonschema import Draft7Validator

import coordinator.cli.app
import coreg_sim.cli.app
import site_agent.cli.app
from coordinator.service.create import Choices, file_of

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
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


# --- generated parts ------------------------------------------------------------------------------


def test_generated_parts_are_fresh():
    command = [sys.executable, ROOT / "tools" / "docs.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def kind_of(text, read):
    """Which of the four files a TOML example is of."""
    if named := re.match(r"#:schema \./schemas/(\w+)\.json", text):
        return named[1]
    if "federation" in read or "study" in read:
        if "federation" in read:
            return "federation"
        return "study"
    if {"data", "coordinator"} & read.keys():
        return "agent"
    return "policy"


def toml_texts():
    yield pytest.param(
        file_of(Choices(), ["a", "b", "c"]), id="the file of `coreg-coordinator init`"
    )
    for path in sorted((ROOT / "deploy").glob("*.toml")):
        yield pytest.param(path.read_text(), id=path.name)
    for page in (
        page for page in PAGES if page.parent.name in ("how-to", "reference", "tutorials")
    ):
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
    assert [
        fault for fault in faults if read
    ] == []  # a block that only names its schema holds no keys
    assert any("unknown" in fault for fault in schema_faults(kind, {**read, "unknown": 1}))


@pytest.mark.parametrize("kind", ["federation", "study", "agent", "policy"])
def test_a_schema_describes_every_key(kind):
    """An editor shows the description of a key."""
    schema = json.loads((ROOT / "docs" / "reference" / "schemas" / f"{kind}.json").read_text())
    sections = schema.get("definitions") or {kind: schema}
    keys = [key for section in sections.values() for key in section["properties"].items()]
    assert len(keys) >= 9
    assert [key for key, shape in keys if not shape.get("description")] == []


# --- links and commands ---------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page
        if name:
            target = page.parent / name
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_pages_that_the_code_names_exist():
    packages = ("coordinator", "coreg_core", "coreg_federation", "coreg_sim", "proto", "site_agent")
    files = [path for package in packages for path in (ROOT / package).rglob("*.py")]
    named = {
        (path.name, name)
        for path in files
        for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text())
    }
    assert len(named) > 5
    assert [(file, name) for file, name in sorted(named) if not (ROOT / name).exists()] == []


# Names of other packages that pages mention beside ours.
OTHERS = {
    "CalibratedClassifierCV", "TransformedTargetRegressor", "BaggingRegressor", "StackingRegressor",
    "additiveregressor__label_mask", "cross_val_predict", "neg_root_mean_squared_error",
    "ss_glm_train",
    "CERTIFICATE_VERIFY_FAILED", "HTTPS_PROXY", "PIP_INDEX_URL", "allowed_signers",
}  # fmt: skip
OURS = re.compile(
    r"\.(py|toml|proto|ya?ml|html|json|css|txt|svg|service|sh)$|^(Makefile|deploy/|\.ci/|\.github/)"
)


@cache
def names_of_the_code():
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tracked = listed.stdout.splitlines()
    ours = [
        ROOT / name
        for name in tracked
        if OURS.search(name) and not name.startswith("tests/cli/test_docs")
    ]
    text = "\n".join(path.read_text(errors="replace") for path in ours if path.exists())
    return set(re.findall(r"[A-Za-z_]\w*", text)), tracked


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda p: p.stem
)
def test_no_page_names_what_is_gone(page):
    """`snake_case`, `CamelCase` and `paths/to.py` in the text are names of the code, or of another
    package (OTHERS).
    """
    names, files = names_of_the_code()
    for span in re.findall(
        r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    ):
        for name in re.findall(r"[A-Za-z_]\w*", "" if "/" in span else span):
            if "_" in name.strip("_") or re.match(r"[A-Z][a-z]+[A-Z]", name):
                exported = re.match(r"coreg_\w+_(total|under_way)$|COREG_[A-Z_]+$|part_SITE$", name)
                metric = name.removeprefix("coreg_")
                assert name in names or metric in names or name in OTHERS or exported, (
                    f"{page.name}: `{span}`"
                )
        if re.fullmatch(r"[\w./-]+/[\w.-]+\.(py|proto|sh)", span) and "NAME" not in span:
            assert any(file.endswith(span) for file in files), f"{page.name}: `{span}`"


def test_tests_that_are_pointed_to_exist():
    pointed = r"`(tests/[\w/]*test_\w+\.py|tests/\w+)(?:::(\w+))?`"
    for page in PAGES:
        for path, name in re.findall(pointed, page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"
            if name:
                assert f"def {name}(" in (ROOT / path).read_text(), f"{page.name}: {path}::{name}"


def test_make_has_the_targets_that_pages_name():
    rules = (ROOT / "Makefile").read_text()
    for page in PAGES:
        spans = " ".join([*blocks(page, "sh"), *re.findall("`.+?`", page.read_text())])
        for target in re.findall(r"\bmake (\w+)", spans):
            assert re.search(rf"^{target}:", rules, re.MULTILINE), f"{page.name}: make {target}"


def test_every_page_is_in_the_site():
    named = re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    made = {
        "changes.md",
        "examples/index.md",
        "research/attacks/index.md",
    }  # by tools/site_hooks.py
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(set(named) - made) == sorted(pages)


def test_the_public_ci_runs_on_machines_where_the_programs_start():
    """A job on Windows could not pass: `pwd` and `termios` are missing there."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    machines = [job["runs-on"] for job in jobs.values() if "matrix" not in job["runs-on"]]
    matrix = jobs["linux"]["strategy"]["matrix"]
    machines += [*matrix["machine"], *(more["machine"] for more in matrix["include"])]
    assert {machine.split("-")[0] for machine in machines} == {"ubuntu"}


def fenced_commands():
    for page in (page for page in PAGES if page.name != "CHANGELOG.md"):
        for block in blocks(page, "sh"):
            for line in block.splitlines():
                line = re.split(r"\s>>?\s", line)[0]  # where it goes is the shell's business
                if (
                    (words := shlex.split(line, comments=True))
                    and words[0] in PROGRAMS
                    and "--version" not in words
                ):
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


def test_commands_options_and_variables_in_the_text_exist():
    commands = [
        command for group in PROGRAMS.values() for command in (group, *group.commands.values())
    ]
    parameters = [each for command in commands for each in command.params]
    options = {
        "--help",
        "--version",
        "--build",
        "--write",
        "--check",
        "--fetch",
    }  # and those of tools
    options.update(option for each in parameters for option in each.opts)
    variables = {each.envvar for each in parameters}
    for page in PAGES:
        for span in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text()):
            words = span.split()
            if words[0] in PROGRAMS and len(words) > 1 and not words[1].startswith("--"):
                assert words[1].rstrip(",.") in PROGRAMS[words[0]].commands, (
                    f"{page.name}: `{span}`"
                )
            if words[0] in PROGRAMS or words[0].startswith("--"):
                assert set(re.findall(r"--[a-z][a-z-]*", span)) <= options, f"{page.name}: `{span}`"
            if re.fullmatch("COREG_[A-Z_]+", span):
                assert span in variables, f"{page.name}: `{span}`"


def test_the_page_of_drills_lists_every_drill():
    """`make faults` writes it; a new drill needs a new run."""
    module = runpy.run_path(str(ROOT / "tools" / "faults.py"))
    named = {
        name
        for path in (ROOT / "tests" / "e2e").glob("test_*.py")
        for name in module["drills"](path.read_text())
    }
    page = (ROOT / "docs" / "research" / "reliability.md").read_text()
    listed = re.findall(r"^\| ([^|]+) \| (\d+) \| (\d+) \| \d+ \|$", page, re.MULTILINE)
    assert {name for name, _, _ in listed} == {module["sentence"](name) for name in named}
    assert all(int(times) > 0 and times == held for _, times, held in listed)


# --- docs/how-to/troubleshoot.md quotes the programs ----------------------------------------------

TROUBLESHOOT = ROOT / "docs" / "how-to" / "troubleshoot.md"
HOLE = "\0"


def said_in(path):
    """The strings of a file, with gaps in place of values. Adjacent strings are joined."""

    def flat(node):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                return node.value
            return HOLE
        if isinstance(node, ast.JoinedStr):
            return "".join(flat(part) for part in node.values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return flat(node.left) + flat(node.right)
        return HOLE

    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    documented = {
        id(node.value) for node in nodes if isinstance(node, ast.Expr)
    }  # for readers of the code alone
    texts = [node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)]
    return [flat(node) for node in texts if id(node) not in documented]


@pytest.fixture(scope="module")
def strings():
    rooms = ("site_agent", "coordinator", "coreg_core", "coreg_sim", "proto/coreg_wire")
    files = [
        path for room in rooms for path in (ROOT / room).rglob("*.py") if "_pb2" not in path.name
    ]
    return [text for path in files for text in said_in(path) if " " in text]


def quoted():
    """The texts in quotes of the first column of each table."""
    rows = re.findall(r"^\| (.+?) \| ", TROUBLESHOOT.read_text(encoding="utf-8"), re.MULTILINE)
    return [quotation for row in rows for quotation in re.findall(r'"([^"]+)"', row)]


@pytest.mark.parametrize("quotation", quoted())
def test_every_quotation_is_in_the_code(quotation, strings):
    parts = [re.escape(part) for part in quotation.split("…")]
    pattern = re.compile(".*?".join(parts), re.DOTALL)
    assert any(pattern.search(text) for text in strings), quotation
