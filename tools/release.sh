#!/bin/sh
# `make release`: wheel, source, SBOM, licences of the dependencies, checksums and their signature, in dist/VERSION. The build
# is reproducible: the same commit gives the same bytes. Nothing is published and no tag is set; the last lines say how.
#   KEY=~/.ssh/id_ed25519   signs SHA256SUMS (ssh-keygen -Y); without it the release is not signed
#   RELEASE_URL=https://…   the repository's public address: links of the package's page, and its [project.urls]
#   OUT=DIR                 instead of dist/VERSION
set -eu
unset PYTHONPATH PYTHONHOME 2>/dev/null || true # the SBOM is of a fresh environment
cd "$(dirname "$0")/.."
bin=$PWD/.venv-release/bin
fail() { echo "release: $*" >&2; exit 1; }

version=$("$bin/python" -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
out=${OUT:-dist/$version}
grep -Eq "^## \[$version\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md || fail "CHANGELOG.md has no section '## [$version] - DATE'."
[ -z "$(git status --porcelain)" ] || fail "the working tree has changes. Commit them: a release is built from a commit."
[ -z "$(git tag --list "v$version")" ] || [ "$(git rev-list -1 "v$version")" = "$(git rev-parse HEAD)" ] \
  || fail "v$version is the tag of another commit. Raise the version in pyproject.toml."

rm -rf "$out" && mkdir -p "$out"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) "$bin/python" -m hatchling build -d "$out"
"$bin/validate-pyproject" pyproject.toml
"$bin/twine" --no-color check --strict "$out"/coreg_federation-*
"$bin/check-wheel-contents" --ignore W009 "$out"/*.whl # W009: several packages at the top, as intended

# What a site installs: the lock and the wheel, in an environment of its own.
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"$bin/python" -m venv --without-pip "$fresh"
"$bin/uv" pip install --quiet --python "$fresh/bin/python" --only-binary :all: --require-hashes -r requirements.lock
"$bin/uv" pip install --quiet --python "$fresh/bin/python" --no-deps "$out"/*.whl
"$fresh/bin/coreg-agent" --version
"$bin/cyclonedx-py" environment --pyproject pyproject.toml --output-reproducible --of JSON -o "$out/sbom.cdx.json" "$fresh/bin/python"
"$bin/python" tools/licences.py "$out/sbom.cdx.json" > "$out/LICENCES.txt"

# An index without advisories knows no package: that is no audit, and the count says so.
code=0
audit=$("$bin/pip-audit" --require-hashes --disable-pip --progress-spinner off -r requirements.lock 2>&1) || code=$?
case $code/$audit in
  1/*"known vulnerab"*) fail "$audit" ;;
  0/*)
    unknown=$(echo "$audit" | grep -c "could not be audited" || true) all=$(grep -c '==' requirements.lock)
    if [ "$unknown" -gt 0 ]; then
      echo "audit: NOT AUDITED: the database does not know $unknown of $all packages; none of the others is known to be vulnerable"
    else
      echo "audit: no known vulnerability in $all packages"
    fi
    ;;
  *) echo "audit: skipped, no advisory database answers" ;;
esac

(cd "$out" && LC_ALL=C sha256sum coreg_federation-* sbom.cdx.json LICENCES.txt > SHA256SUMS)
if [ -n "${KEY:-}" ]; then
  ssh-keygen -q -Y sign -f "$KEY" -n coreg-release "$out/SHA256SUMS"
else
  echo "not signed: give KEY=FILE, an SSH key of the person who releases"
fi
echo "$out: $(ls "$out" | tr '\n' ' ')"
echo "next: git tag -a v$version -m 'coreg $version' && git push origin v$version"
echo "      $bin/twine upload $out/coreg_federation-*"
