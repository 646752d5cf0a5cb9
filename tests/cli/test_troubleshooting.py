"""docs/how-to/troubleshooting.md quotes the programs: each quotation is found in the code, and the commonest are provoked."""

import ast
import re
from pathlib import Path

import pytest

from coordinator.authority.pki import create_authority, sign_request
from coreg_core.errors import CoregError
from coreg_wire.files.toml_file import read_toml
from site_agent.data.inputs import Inputs
from site_agent.data.prepare import prepare
from site_agent.identity.identity import enrol

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
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
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("### ")]
    return [quotation for line in lines for quotation in re.findall(r'"([^"]+)"', line)]


@pytest.mark.parametrize("quotation", quoted())
def test_every_quotation_is_in_the_code(quotation, strings):
    parts = [re.escape(part) for part in quotation.split("…")]
    pattern = re.compile(".*?".join(parts), re.DOTALL)
    assert any(pattern.search(text) for text in strings), quotation


def test_a_sentence_that_is_not_in_the_code_is_not_found(strings):
    assert len(quoted()) > 20
    assert not any("the moon is in the way" in text for text in strings)


def table(folder, text, **options):
    (folder / "t.csv").write_text(text)
    prepare(Inputs(table=folder / "t.csv", target="y", id="id", **options))


def signed_through_a_link(folder):
    create_authority(folder / "authority", [])
    (folder / "authority" / "north.pem").symlink_to(folder / "elsewhere")
    sign_request(folder / "authority", enrol(folder / "identity", "north").request_path)


def deep(folder):
    (folder / "deep.toml").write_text("a" + ".b" * 100 + " = 1")
    read_toml(folder / "deep.toml")


PROVOKED = {
    "is not a finite number": lambda f: table(f, "id,a,y\n1,1,1\n2,x,2\n3,4,\n"),
    "no cell of the table shows whether": lambda f: table(f, "id;a;y\n1;1,234;1\n2;2,345;2\n3;4;\n"),
    "the table has decimal commas": lambda f: table(f, "id;a;b;y\n1;1,5;2.5;1\n2;2,5;3;2\n3;4;4;\n"),
    "can be read with": lambda f: table(f, "weight, kg;id\n1,5;p1\n"),
    "can have the day or the month first": lambda f: table(f, "id,d,y\n1,1/2/2024,1\n2,3/4/2024,\n", dates=("d",)),
    "are one-hot encoded": lambda f: table(
        f, "id,c,y\n" + "".join(f"{i},text {i},{i if i < 9 else ''}\n" for i in range(210))
    ),
    "among the shared instances": lambda f: table(f, "id,a,y\n1,1,1\n2,2,\n2,3,\n"),
    "nothing is written through a link": signed_through_a_link,
    "nested too deeply": deep,
}


@pytest.mark.parametrize("said", PROVOKED)
def test_the_error_has_the_quoted_words(said, tmp_path):
    assert any(said in quotation for quotation in quoted())
    with pytest.raises(CoregError, match=re.escape(said)):
        PROVOKED[said](tmp_path)
