"""What a plain agent or coordinator takes on the disk: `pip install .` in a fresh environment, and its parts.

    python benchmarks/installation.py [--write]      --write puts it into docs/performance.json, behind docs/performance.md

Needs the index. Beside it the same with the extra `estimators`. Bytes are the files' lengths, with the byte code that pip makes;
*tools* are pip and setuptools, which Python's own `venv` puts there.
"""

import argparse
import json
import platform
import subprocess
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "performance.json"
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
MOST = 6  # parts with a row of their own


def weight(path: Path) -> int:
    """Bytes of the files below, or of the file."""
    if path.is_dir() and not path.is_symlink():
        return sum(weight(each) for each in path.iterdir())
    return path.lstat().st_size


def part(name: str) -> str:
    """Which package a name in site-packages belongs to, as far as weight is concerned."""
    stem = name.removesuffix(".libs").split("-")[0]
    if stem in TOOLS or stem == "distutils":
        return "tools"
    return "polars" if stem.startswith("_polars_runtime") else stem


def installed(extra: str) -> dict[str, object]:
    """An environment with it, weighed and thrown away."""
    with tempfile.TemporaryDirectory(prefix="coreg-installation-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, f"{ROOT}{extra}"], check=True, timeout=500)
        [packages] = Path(folder).glob("lib/python*/site-packages")
        parts: dict[str, int] = {}
        for each in packages.iterdir():
            parts[part(each.name)] = parts.get(part(each.name), 0) + weight(each)
        whole = weight(Path(folder))
        largest = sorted(parts.items(), key=lambda item: -item[1])[:MOST]
        return {"bytes": whole, "parts": dict(largest), "tools": parts["tools"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/performance.json")
    options = parser.parse_args()
    found = {"python": platform.python_version()} | {
        name: installed(extra) for name, extra in (("plain", ""), ("estimators", "[estimators]"))
    }
    print(json.dumps(found, indent=1))
    if options.write:
        known = json.loads(FIGURES.read_text(encoding="utf-8"))
        FIGURES.write_text(json.dumps(known | {"installation": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
