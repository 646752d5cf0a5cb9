"""`make release` in a clone: its files, the same bytes from the same commit, and a signature that
is checked.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
URL = "https://git.example.org/coreg"  # of this test
pytestmark = pytest.mark.e2e


def run(*command, cwd, ok=True, **options):
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, **options)
    if ok:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("release") / "clone"
    run("git", "clone", "--quiet", ROOT, folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def release(clone):
    key = clone.parent / "key"
    out = clone.parent / "out"
    run(
        "ssh-keygen",
        "-q",
        "-t",
        "ed25519",
        "-N",
        "",
        "-C",
        "release@example.org",
        "-f",
        key,
        cwd=clone,
    )
    tools = clone / ".venv-release"  # as the Makefile makes it, and faster
    run(sys.executable, "-m", "venv", "--without-pip", tools, cwd=clone)
    uv = [
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--quiet",
        "--python",
        tools / "bin/python",
    ]
    run(*uv, "--require-hashes", "-r", "requirements-release.lock", cwd=clone)
    (tools / ".installed").touch()
    environment = {**os.environ, "KEY": str(key), "RELEASE_URL": URL, "OUT": str(out)}
    return out, run("make", "release", cwd=clone, env=environment).stdout


def test_a_release_has_its_files_their_checksums_and_the_next_commands(release):
    out, told = release
    names = {path.name for path in out.iterdir()}
    version = re.search(r"coreg_federation-([\d.]+)-py3-none-any.whl", " ".join(names))[1]
    assert names == {
        f"coreg_federation-{version}-py3-none-any.whl", f"coreg_federation-{version}.tar.gz",
        "sbom.cdx.json", "LICENCES.txt", "SHA256SUMS", "SHA256SUMS.sig",
    }  # fmt: skip
    run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=out)
    assert f"git tag -a v{version}" in told
    assert "audit: " in told, "an audit, or why there is none"
    with tarfile.open(out / f"coreg_federation-{version}.tar.gz") as source:
        held = {name.partition("/")[2] for name in source.getnames()}
    assert {
        "LICENSE",
        "CHANGELOG.md",
        "SECURITY.md",
        "CITATION.cff",
        "requirements.lock",
        "tests/expected.py",
    } <= held


def test_the_sbom_names_every_locked_package_that_a_linux_site_installs_and_its_licence(release):
    out, _ = release
    components = {
        each["name"].lower().replace("_", "-"): each
        for each in json.loads((out / "sbom.cdx.json").read_text())["components"]
    }
    locked = re.findall(
        r"^([\w.-]+)==(\S+?)(?: ;| \\)", (ROOT / "requirements.lock").read_text(), re.MULTILINE
    )
    everywhere = {
        name
        for name, version in locked
        if components.get(name.lower(), {}).get("version") == version
    }
    absent = {name for name, _ in locked} - everywhere
    assert absent <= {"colorama", "tzdata"}, "for Windows alone"
    licences = (out / "LICENCES.txt").read_text()
    assert re.search(r"^numpy \S+: .*BSD", licences, re.MULTILINE)
    copyleft = [line for line in licences.splitlines() if re.search(r"\bA?GPL", line)]
    assert copyleft == [], "a site may use them without conditions of this kind"


def test_the_packages_page_links_to_the_repository_and_to_nothing_relative(release):
    [wheel] = release[0].glob("*.whl")
    with zipfile.ZipFile(wheel) as files:
        [name] = [name for name in files.namelist() if name.endswith("/METADATA")]
        head, _, page = files.read(name).decode().partition("\n\n")
    assert f"Project-URL: Repository, {URL}\n" in head
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert len(links) > 15
    assert {urlsplit(link).scheme for link in links} == {"https"}
    paths = [
        urlsplit(link).path.removeprefix("/coreg/").split("/", 2)
        for link in links
        if link.startswith(URL)
    ]
    assert {kind for kind, _, _ in paths} == {"blob", "raw"}
    assert all((ROOT / path).exists() for _, _, path in paths)


def test_a_changed_file_and_a_strangers_signature_are_found(release, tmp_path):
    out, _ = release
    public = (out.parent / "key.pub").read_text()
    (tmp_path / "signers").write_text(f"release@example.org {public}")
    who = ["-f", tmp_path / "signers", "-I", "release@example.org", "-n", "coreg-release"]
    verify = ["ssh-keygen", "-Y", "verify", *who, "-s", out / "SHA256SUMS.sig"]
    sums = (out / "SHA256SUMS").read_text()
    assert "Good" in run(*verify, cwd=tmp_path, input=sums).stdout
    assert run(*verify, cwd=tmp_path, input=sums.replace("a", "b", 1), ok=False).returncode
    copy = shutil.copytree(out, tmp_path / "copy")
    (copy / "LICENCES.txt").write_text("none")
    assert run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=copy, ok=False).returncode


def test_the_same_commit_gives_the_same_wheel(release, clone, tmp_path):
    out, _ = release
    epoch = run("git", "log", "-1", "--format=%ct", cwd=clone).stdout.strip()
    again = {**os.environ, "RELEASE_URL": URL, "SOURCE_DATE_EPOCH": epoch}
    run(
        clone / ".venv-release/bin/python",
        "-m",
        "hatchling",
        "build",
        "-d",
        tmp_path,
        cwd=clone,
        env=again,
    )
    for path in out.glob("coreg_federation-*"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
