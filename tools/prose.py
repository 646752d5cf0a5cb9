"""Check the language of README.md and docs/: line width, sentence length, and words that our style
avoids.

    python tools/prose.py      prints each finding as FILE:LINE; exit code 1 if there is one

The rules are those of CONTRIBUTING.md, Language. Tables, code and generated parts are not measured,
but avoided words are found everywhere, in `--help` too (docs/reference/commands.md).
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
WORDS = 32
# Homely words, inverted subjects and riddles, for which the field has a term; American spelling.
AVOIDED = re.compile(
    r"\b(whoever|whomever|nobody|somebody|everybody|says so|say so|said so|is told|are told|was"
    r" told|turned away|"
    r"what it is for|whose business|at one instant|comes to nothing|in words|the"
    r" like\b|beforehand|at hand|"
    r"by itself alone|stands in nobody|"
    r"(?!size|sizing|kustomize)\w+iz(?:e|es|ed|ing|ations?)|behaviors?|colors?|centers?|neighbors?|labeled|modeled)\b",
    re.IGNORECASE,
)
GENERATED = re.compile(r"<!-- generated: .*?<!-- end -->", re.DOTALL)
CODE = re.compile(r"^ *```.*?^ *```|^~~~.*?^~~~|^---\n.*?^---\n", re.DOTALL | re.MULTILINE)
SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`*\[(])")


def blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def lines_of_generated(text: str) -> set[int]:
    """The numbers of the lines of generated parts."""
    numbers = set[int]()
    for part in GENERATED.finditer(text):
        first = text.count("\n", 0, part.start()) + 1
        numbers.update(range(first, first + part[0].count("\n") + 1))
    return numbers


def findings(text: str) -> Iterator[tuple[int, str]]:
    """(line, finding) of one page."""
    generated = lines_of_generated(text)
    for number, line in enumerate(text.split("\n"), 1):
        if word := AVOIDED.search(re.sub(r"`[^`]*`", "", line)):
            where = " (a generated part: mend its source)" if number in generated else ""
            yield number, f"avoid {word[0]!r}{where}"
    lines = CODE.sub(blank, GENERATED.sub(blank, text)).split("\n")
    for number, line in enumerate(lines, 1):
        breaks = not line.lstrip().startswith(("|", "!", "<", ">")) and "](" not in line
        if breaks and len(line) > WIDTH:
            yield number, f"{len(line)} columns, at most {WIDTH}"
    for number, paragraph in paragraphs(lines):
        yield from long_sentences(number, paragraph)


def paragraphs(lines: list[str]) -> Iterator[tuple[int, str]]:
    """Each paragraph and each item of a list, with the number of its first line."""
    start = 1
    paragraph = list[str]()
    for number, line in enumerate([*lines, ""], 1):
        prose = line.strip() and not re.match(r"\s*([|#>!<]|\$\$|    )", line)
        if paragraph and (not prose or re.match(r"\s*([-*]|\d+\.) ", line)):
            yield start, " ".join(paragraph)
            paragraph = []
        if prose:
            if not paragraph:
                start = number
            paragraph.append(line.strip())


def long_sentences(line: int, paragraph: str) -> Iterator[tuple[int, str]]:
    plain = re.sub(r"\$[^$]*\$", "x", re.sub(r"\]\([^)]*\)", "]", paragraph))
    for sentence in SENTENCE.split(plain):
        if (count := len(re.findall(r"[\w'-]*[A-Za-z][\w'-]*", sentence))) > WORDS:
            yield line, f"a sentence of {count} words, at most {WORDS}: {sentence[:60]} …"


def main() -> int:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    found = [(page, *each) for page in pages for each in findings(page.read_text(encoding="utf-8"))]
    for page, line, text in found:
        print(f"{page.relative_to(ROOT)}:{line}: {text}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
