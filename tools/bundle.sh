#!/bin/sh
# An installation for a machine without a network: dist/coreg-VERSION-PLATFORM.tar.gz with the release in dist/VERSION, every
# other wheel (hashes as in requirements.lock), an installer that asks no index, and the image where a Docker engine answers.
# Its checksum is beside it; KEY=FILE signs that.
# The wheels are for this machine's platform and Python; run it on one like those that it is for.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
version=$("$PYTHON" -c 'from importlib.metadata import version; print(version("coreg-federation"))')
platform=$("$PYTHON" -c 'import sys, sysconfig; print(sysconfig.get_platform(), "py%d.%d" % sys.version_info[:2], sep="-")')
name=coreg-$version-$platform
bundle=dist/$name
release=dist/$version
[ -f "$release/SHA256SUMS" ] || { echo "bundle: $release has no release. Run \`make release\` first." >&2; exit 1; }
(cd "$release" && sha256sum --check --quiet SHA256SUMS)
rm -rf "$bundle" "$bundle".tar.gz*
mkdir -p "$bundle/wheels" "$bundle/deploy"

echo "wheels of requirements.lock, hashes checked"
"$PYTHON" -m pip --disable-pip-version-check download --quiet --only-binary :all: --require-hashes -r requirements.lock \
  --dest "$bundle/wheels"
cp "$release"/*.whl "$bundle/wheels"
cp "$release"/sbom.cdx.json "$release"/LICENCES.txt requirements.lock LICENSE CHANGELOG.md SECURITY.md "$bundle"
cp -R deploy/. "$bundle/deploy"
cp -R docs "$bundle/docs"

cat > "$bundle/install.sh" <<'INSTALL'
#!/bin/sh
# sh install.sh [DIRECTORY]: a virtual environment there (default /opt/coreg), from the wheels beside this file and nothing else.
set -eu
cd "$(dirname "$0")"
target=${1:-/opt/coreg}
sha256sum --check --quiet SHA256SUMS
"${PYTHON:-python3}" -m venv "$target"
offline="-m pip --disable-pip-version-check install --quiet --no-index --find-links wheels"
"$target/bin/python" $offline --require-hashes -r requirements.lock
"$target/bin/python" $offline --no-deps wheels/coreg_federation-*.whl
"$target/bin/coreg-agent" --version
echo "installed in $target; with Docker instead: docker load < coreg-image.tar (deploy/compose.yml, deploy/kubernetes)"
INSTALL

if docker info >/dev/null 2>&1; then
  image=coreg:$version
  echo "image $image"
  docker build --quiet --tag "$image" --file deploy/Dockerfile . >/dev/null
  docker save --output "$bundle/coreg-image.tar" "$image"
else
  echo "no Docker engine answers here: the bundle has no image" >&2
fi
(cd "$bundle" && find . -type f ! -name SHA256SUMS | LC_ALL=C sort | xargs sha256sum > SHA256SUMS)
tar -C dist -czf "$bundle.tar.gz" "$name"
(cd dist && sha256sum "$name.tar.gz" > "$name.tar.gz.sha256")
if [ -n "${KEY:-}" ]; then ssh-keygen -q -Y sign -f "$KEY" -n coreg-release "$bundle.tar.gz.sha256"; fi
du -h "$bundle.tar.gz"
