#!/bin/sh
# `make postgresql`: the tests of tables from a real PostgreSQL server. Debian's package `postgresql` has the programs.
# The server has a new folder and a random password, listens on loopback alone, and ends with this script.
set -eu
programs=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
programs=${PROGRAMS:-${programs:-$(pg_config --bindir)}}
folder=$(mktemp -d)
as() { if [ "$(id -u)" = 0 ]; then runuser -u postgres -- "$@"; else "$@"; fi; } # initdb refuses root
finish() {
  as "$programs/pg_ctl" -D "$folder/data" -m fast stop >/dev/null 2>&1 || true
  rm -rf "$folder"
}
trap finish EXIT
PGPASSWORD=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
port=$(${PYTHON:-python3} -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '%s\n' "$PGPASSWORD" >"$folder/password"
if [ "$(id -u)" = 0 ]; then chown -R postgres "$folder"; fi
as "$programs/initdb" -D "$folder/data" -U coreg -A scram-sha-256 --pwfile="$folder/password" >/dev/null
options="-c listen_addresses=127.0.0.1 -c port=$port -c unix_socket_directories=$folder -c fsync=off"
as "$programs/pg_ctl" -D "$folder/data" -w -o "$options" -l "$folder/log" start >/dev/null || { cat "$folder/log"; exit 1; }
as "$programs/postgres" --version
export PGPASSWORD COREG_POSTGRESQL="postgresql://coreg@127.0.0.1:$port/postgres"
${PYTHON:-python3} -m pytest -n 0 tests/agent/test_postgresql.py tests/e2e/test_postgresql_service.py
