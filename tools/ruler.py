"""How dense the code is, without regard to its layout. `make lint` fails beyond the limits below.

An expression is a node of `ast.expr`. Complexity counts the branches of a function, also
conditional expressions, comprehensions, their conditions, `and` and `or`. A parallel assignment is
`a, b = x, y`.
"""

import argparse
import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("coreg_core", "coordinator", "site_agent", "coreg_sim", "coreg_federation", "proto")
MOST_COMPLEX = 12
# What is reached is the limit, with room for a few changes: lower it with the code. The goals are
# 105,000 expressions and 4.5 a line in the product, 5.0 in the tests.
LIMITS = {
    "product": {"expressions": 127_500, "per line": 4.5, "complex": 0, "parallel": 0, "texts": 0},
    "tests": {"per line": 5.0},
}
COLUMNS = ("code", "comments", "expressions", "per line", "complex", "wide", "parallel", "texts")
TODO = (
    "Remove as much elsewhere, or raise the limit in tools/ruler.py and say in the commit what the"
    " users get for it."
)
BRANCHES = (
    ast.If,
    ast.For,
    ast.While,
    ast.AsyncFor,
    ast.ExceptHandler,
    ast.IfExp,
    ast.Assert,
    ast.comprehension,
    ast.match_case,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def complexity(function: ast.AST) -> int:
    """One, and one for each branch; functions inside count by themselves."""
    branches = 1
    nodes = list(ast.iter_child_nodes(function))
    while nodes:
        node = nodes.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        branches += isinstance(node, BRANCHES)
        if isinstance(node, ast.comprehension):
            branches += len(node.ifs)
        if isinstance(node, ast.BoolOp):
            branches += len(node.values) - 1
        nodes.extend(ast.iter_child_nodes(node))
    return branches


def is_parallel(node: ast.AST) -> bool:
    if not isinstance(node, ast.Assign):
        return False
    return isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def is_text_times_condition(node: ast.AST) -> bool:
    """`"text" * condition`; a character that is repeated a number of times is none."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    text = node.left
    if isinstance(text, ast.Constant):
        return isinstance(text.value, str) and len(text.value) > 1
    return isinstance(text, ast.JoinedStr)


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            continue
        if ast.get_docstring(node) is not None:
            lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def measured(path: Path) -> tuple[Counter[str], list[str]]:
    """The counts of one file, and the places of what has too many branches or is not allowed."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    documented = docstring_lines(tree)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    counts = Counter(dict.fromkeys(COLUMNS, 0))
    counts["comments"] = sum(token.type == tokenize.COMMENT for token in tokens)
    for number, line in enumerate(text.splitlines(), 1):
        is_code = bool(line.strip()) and number not in documented
        counts["code"] += is_code and not line.lstrip().startswith("#")
        counts["wide"] += len(line) > 100
    places = []
    for node in ast.walk(tree):
        counts["expressions"] += isinstance(node, ast.expr)
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if is_parallel(node):
            counts["parallel"] += 1
            places.append(f"{place}: a parallel assignment, `a, b = x, y`: write two")
        if is_text_times_condition(node):
            counts["texts"] += 1
            places.append(f'{place}: "text" * condition: write an if')
        if isinstance(node, FUNCTIONS) and complexity(node) > MOST_COMPLEX:
            counts["complex"] += 1
            places.append(
                f"{place}: {node.name} has {complexity(node)} branches, at most {MOST_COMPLEX}"
            )
    return counts, places


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quiet", action="store_true", help="print what is beyond a limit")
    quiet = options.parse_args().quiet
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    groups: dict[str, Counter[str]] = {}
    places = []
    for name in listed.stdout.split():
        if not (ROOT / name).exists():  # deleted, and not yet committed
            continue
        top = name.split("/")[0]
        if top not in (*PRODUCT, "tests") or name.endswith("_pb2.py"):
            continue
        counts, found = measured(ROOT / name)
        for group in (top,) if top == "tests" else (top, "product"):
            groups.setdefault(group, Counter()).update(counts)
        if top != "tests":
            places += found
    figures = {
        group: counts | {"per line": round(counts["expressions"] / counts["code"], 2)}
        for group, counts in groups.items()
    }
    if not quiet:
        print(f"{'':18}" + "".join(f"{column:>12}" for column in COLUMNS))
        for group in (*PRODUCT, "product", "tests"):
            cells = "".join(f"{figures[group][column]:>12}" for column in COLUMNS)
            print(f"{group:18}{cells}")
    beyond = [
        f"{group}: {figures[group][key]} {key}, where {limit} is the limit. {TODO}"
        for group, limits in LIMITS.items()
        for key, limit in limits.items()
        if figures[group][key] > limit
    ]
    for line in beyond + places:
        print(line, file=sys.stderr)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
