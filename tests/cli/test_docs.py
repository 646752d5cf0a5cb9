"""The documentation says what the programs do: generated parts are fresh, links lead somewhere, examples run."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_generated_parts_are_fresh():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "docs.py", "--check"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_two_commands_are_make_targets():
    makefile = (ROOT / "Makefile").read_text()
    for target in ("demo", "test"):
        assert f"make {target} " in (ROOT / "README.md").read_text()
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_the_library_example_runs(capsys):
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    assert shown.startswith("(100,) ")
    assert np.isfinite(float(shown.split()[1]))


def test_every_command_in_the_readme_exists():
    pages = (ROOT / "docs" / "commands.md").read_text()
    sections = dict(re.findall(r"^## (.+?)\n\n```text\n(.*?)```", pages, re.DOTALL | re.MULTILINE))
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.split("#")[0].split() for block in blocks for line in block.splitlines()]
    checked = 0
    for words in lines:
        if not words or not words[0].startswith("coreg-"):
            continue
        name = " ".join(words[:2]) if " ".join(words[:2]) in sections else words[0]
        for option in (word for word in words if word.startswith("--")):
            assert f"{option} " in sections[name], f"{' '.join(words)}: {name} has no {option}"
        checked += 1
    assert checked >= 9
