"""docs/how-to/troubleshoot.md quotes the programs: each quotation is found in the code, and the commonest are provoked."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "troubleshoot.md"
HOLE = "\0"


def said_in(path):
    """The strings of a file as they are written, holes where values go; texts that stand side by side are one."""

    def flat(node):
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else HOLE
        if isinstance(node, ast.JoinedStr):
            return "".join(flat(part) for part in node.values)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return flat(node.left) + flat(node.right)
        return HOLE

    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    documented = {
        id(node.value) for node in nodes if isinstance(node, ast.Expr)
    }  # what is told to readers of the code alone
    texts = [node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)]
    return [flat(node) for node in texts if id(node) not in documented]


@pytest.fixture(scope="module")
def strings():
    rooms = ("site_agent", "coordinator", "coreg_core", "coreg_sim", "proto/coreg_wire")
    files = [path for room in rooms for path in (ROOT / room).rglob("*.py") if "_pb2" not in path.name]
    return [text for path in files for text in said_in(path) if " " in text]


def quoted():
    """The texts in quotes of the first column of each table."""
    rows = re.findall(r"^\| (.+?) \| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [quotation for row in rows for quotation in re.findall(r'"([^"]+)"', row)]


@pytest.mark.parametrize("quotation", quoted())
def test_every_quotation_is_in_the_code(quotation, strings):
    parts = [re.escape(part) for part in quotation.split("…")]
    pattern = re.compile(".*?".join(parts), re.DOTALL)
    assert any(pattern.search(text) for text in strings), quotation
