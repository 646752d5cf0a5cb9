#!/bin/sh
# Generate the protobuf code from proto/coreg_wire/v1/federation.proto (make proto). It is committed; CI checks it.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
out=${1:-proto}
"$python" -m grpc_tools.protoc -I proto --python_out="$out" --pyi_out="$out" coreg_wire/v1/federation.proto
