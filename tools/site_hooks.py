"""mkdocs hooks for `make site`: add pages from outside docs/ to the site, and adapt the links to
them.

CHANGELOG.md becomes the last page, and examples/ a gallery. Files of the repository that a page
links to are copied into the site. The site loads nothing from other hosts.
"""

import posixpath
import re
from collections.abc import Iterator
from html import unescape
from itertools import chain
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"CHANGELOG.md": "changes.md"}
DRAWN = re.compile(r'<img[^>]*src="([^"]*pictures/(\w+))\.svg"[^>]*>')
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
PER_CENT = re.compile(r"(?<=\d)\s%")
COPIED = (
    "deploy/**/*",
    "docs/research/attacks/*.py",
    "examples/*.py",
    "LICENSE",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/results/*.json",
    "docker-compose.yml",
)


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and the files that pages link to."""
    for name, page in PAGES.items():
        files.append(
            File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8"))
        )
    files.append(File.generated(config, "research/attacks/index.md", content=attacks()))
    for page, text in examples().items():
        files.append(File.generated(config, page, content=text))
    for name, content in [*copied(), *folders()]:
        files.append(File.generated(config, f"files/{name}", content=content))
    return files


def copied() -> Iterator[tuple[str, bytes]]:
    """Files outside docs/ that pages link to, by their path in the site; Markdown stays text."""
    for path in chain.from_iterable(sorted(ROOT.glob(pattern)) for pattern in COPIED):
        if path.is_file() and not path.is_relative_to(ROOT / "docs"):
            end = ".txt" if path.suffix == ".md" else ""
            yield f"{path.relative_to(ROOT).as_posix()}{end}", path.read_bytes()


def folders() -> Iterator[tuple[str, str]]:
    """An index of each folder of deploy/."""
    for folder in sorted(path for path in (ROOT / "deploy").rglob("*") if path.is_dir()):
        name = folder.relative_to(ROOT).as_posix()
        names = [path.name for path in sorted(folder.iterdir()) if path.is_file()]
        listed = [f"- [{file}]({file})" for file in names]
        yield f"{name}/index.md", "\n".join([f"# {name}", "", *listed, ""])


def attacks() -> str:
    """The index of docs/research/attacks: each script with its first paragraph."""
    lines = [
        "# Attacks",
        "",
        (
            "Each script attacks a federation of this release. [Privacy](../../concepts/privacy.md)"
            " cites the results. To run one, type `python docs/research/attacks/NAME.py` in a"
            " checkout."
        ),
        "",
    ]
    for path in sorted((ROOT / "docs" / "research" / "attacks").glob("*.py")):
        told = path.read_text(encoding="utf-8").split('"""')[1].strip().split("\n\n")[0]
        lines += [f"- [{path.name}]({path.name}): {' '.join(told.split())}"]
    return "\n".join([*lines, ""])


def examples() -> dict[str, str]:
    """The gallery of examples/, and a page for each script with its picture and its code."""
    gallery = [
        "# Examples",
        "",
        (
            "Each script has one idea and runs in seconds with `--quick`. `make examples` runs all"
            " scripts in full."
        ),
        "",
    ]
    pages = {}
    for path in sorted((ROOT / "examples").glob("*.py")):
        _, about, code = path.read_text(encoding="utf-8").split('"""', 2)
        title, idea, *_ = about.split("\n\n")
        title, picture = title.rstrip("."), f"![{title}]({path.stem}.svg)"
        gallery += [f"## [{title}]({path.stem}.md)", "", idea, "", picture, ""]
        rest = about.partition("\n\n")[2]
        pages[f"examples/{path.stem}.md"] = (
            f"# {title}\n\n{rest}\n{picture}\n\n```python\n{code.lstrip()}```\n"
        )
    return {"examples/index.md": "\n".join(gallery), **pages}


def on_page_content(html: str, **_: Any) -> str:
    """Draw formulas of docstrings as MathML, which browsers show without a script; the keyboard
    reaches tables, to scroll. A picture that has a narrow form shows it on a phone.
    """

    def drawn(found: re.Match[str]) -> str:
        return convert(unescape(found[1]))

    def narrow(found: re.Match[str]) -> str:
        image, place, name = found.group(0, 1, 2)
        if not (ROOT / "docs" / "pictures" / f"{name}-narrow.svg").exists():
            return image
        source = f'<source media="(max-width: 600px)" srcset="{place}-narrow.svg">'
        return f"<picture>{source}{image}</picture>"

    html = DRAWN.sub(narrow, html.replace("<table>", '<table tabindex="0">'))
    return re.sub(r'<span class="arithmatex">\\\((.*?)\\\)</span>', drawn, html, flags=re.DOTALL)


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Convert links of the repository to links of the site; the search shows pages on concepts
    first.
    """
    if page.file.src_uri.startswith("concepts/"):
        page.meta.setdefault("search", {})["boost"] = 2
    made = {there: here for here, there in PAGES.items()}
    here = made.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    known = {file.src_uri for file in files}

    def moved(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        path = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
        at = {"examples": "examples/index.md", **PAGES}.get(path) or (
            path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"
        )
        if (ROOT / path).is_dir() and not at.endswith(".md"):
            at = f"{at}/index.md"
        elif at not in known and f"{at}.txt" in known:
            at = f"{at}.txt"
        return (
            f"{before}{posixpath.relpath(at, posixpath.dirname(page.file.src_uri) or '.')}{after}"
        )

    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if part.startswith("`") else PER_CENT.sub("\u00a0%", LINK.sub(moved, part))
        for part in parts
    )
