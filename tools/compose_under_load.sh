#!/bin/sh
# `docker compose up --build` beside 20 busy processes: its five containers have to end with 0 within 20 minutes. Needs a Docker
# engine; not in CI.
set -eu
cd "$(dirname "$0")/.."
busy=""
for _ in $(seq "${BUSY:-20}"); do
  sh -c 'while :; do :; done' &
  busy="$busy $!"
done
trap 'kill $busy 2>/dev/null; docker compose down --volumes --timeout 5 >/dev/null 2>&1' EXIT
began=$(date +%s)
code=0
timeout 1200 docker compose up --build --no-color >compose-load.log 2>&1 || code=$?
# `up` ends with 0 whatever the containers end with.
[ "$code" -ne 0 ] || [ "$(grep -c 'exited with code 0' compose-load.log)" -eq 5 ] || code=1
echo "docker compose up beside ${BUSY:-20} busy processes: exit code $code after $(($(date +%s) - began)) s; log in compose-load.log"
exit "$code"
