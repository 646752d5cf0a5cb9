"""Tables from a real PostgreSQL server: `make postgresql` starts one, or name one of your own as
COREG_POSTGRESQL, such as postgresql://me@127.0.0.1:5432/postgres, with PGPASSWORD.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from agent_files import inputs, prepared, write

from site_agent.data import databases
from site_agent.data.data_sets import DataSets
from site_agent.data.sources import BadTable, source_of
from site_agent.data.tables import read_table

ADDRESS = os.environ.get("COREG_POSTGRESQL", "")
server = pytest.mark.skipif(not ADDRESS, reason="no server: COREG_POSTGRESQL is not set")

TYPED = """
CREATE TABLE typed (
    id text, small smallint, whole integer, large bigint, money numeric(12, 4), free numeric,
    single real, double float8, truth boolean, day date, moment timestamp, zoned timestamptz,
    clock time, key uuid, host inet, padded char(8), raw bytea, span interval);
INSERT INTO typed VALUES (
    '00107', 2, 3, 9007199254740993, 2.5000, 0.1, 0.1, 0.1, true, '2024-01-31',
    '2024-01-31 00:00', '2024-01-31 10:20+01', '10:20', '123e4567-e89b-12d3-a456-426614174000',
    '10.0.0.1', 'ab', '\\x00ff', '1 day');
INSERT INTO typed (id, money, double) VALUES ('00108', 'NaN', 'NaN');
"""
TEXTS = {
    "id": "00107",
    "small": "2",
    "whole": "3",
    "large": "9007199254740993",
    "money": "2.5",
    "free": "0.1",
    "single": "0.1",
    "double": "0.1",
    "truth": "true",
    "day": "2024-01-31",
    "moment": "2024-01-31",
    "zoned": "2024-01-31T09:20:00Z",
    "clock": "10:20:00",
    "key": "123e4567-e89b-12d3-a456-426614174000",
    "host": "10.0.0.1",
    "padded": "ab",
}


@pytest.fixture
def told():
    """Run statements in a schema of the test's own, which its queries read."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(ADDRESS, autocommit=True) as connection:

        def run(statements):
            connection.execute(f"SET search_path = coreg_{os.getpid()}")
            connection.execute(statements)

        connection.execute(f"CREATE SCHEMA coreg_{os.getpid()}")
        yield run
        connection.execute(f"DROP SCHEMA coreg_{os.getpid()} CASCADE")


def rows(columns, table="typed"):
    sql = f"SELECT {columns} FROM coreg_{os.getpid()}.{table}"
    return source_of(ADDRESS, f"{sql} ORDER BY id")


@server
def test_a_value_has_the_text_that_it_has_in_a_file(told):
    told(TYPED)
    table = read_table(rows(", ".join(TEXTS)))
    assert {name: table.texts(name)[0] for name in table.columns} == TEXTS
    assert [table.texts(name)[1] for name in table.columns[1:]] == [None] * (len(TEXTS) - 1)
    assert table.ids("id") == ["00107", "00108"], "zeros stay"


@server
@pytest.mark.parametrize("column", ["raw", "span"])
def test_a_column_without_numbers_and_text_is_refused(told, column):
    told(TYPED)
    with pytest.raises(BadTable, match=f"column '{column}': holds"):
        read_table(rows(f"id, {column}")).texts(column)


PATIENTS = """
CREATE TABLE patients (id text, age integer, dose numeric(6, 2), ward text, y float8);
INSERT INTO patients SELECT lpad(i::text, 5, '0'), 20 + i, i / 4.0, 'w' || i % 3,
    CASE WHEN i <= 12 THEN i * 0.1::float8 END FROM generate_series(1, 20) AS i;
"""


def as_csv(folder):
    lines = []
    for i in range(1, 21):
        label = ""
        if i <= 12:
            label = repr(i * 0.1)
        lines.append(f"{i:05},{20 + i},{i / 4:.2f},w{i % 3},{label}")
    return write(folder, "id,age,dose,ward,y\n" + "\n".join(lines) + "\n")


@server
def test_the_same_bits_as_a_csv_file_of_its_rows(tmp_path, told):
    told(PATIENTS)
    ours = prepared(rows("*", "patients")).data
    theirs = prepared(as_csv(tmp_path)).data
    assert ours.X.tobytes() == theirs.X.tobytes()
    assert ours.Z.tobytes() == theirs.Z.tobytes()
    assert ours.ids_digest == theirs.ids_digest


@server
def test_rows_are_read_again_when_they_changed_and_not_before(told):
    told(PATIENTS)
    sets = DataSets({"patients": inputs(rows("*", "patients"))}, b"")
    assert [sets.get("patients")[1] for _ in range(2)] == [True, False]
    told("UPDATE patients SET age = 99 WHERE id = '00001'")
    assert sets.get("patients")[1]


@server
def test_nothing_is_written(told):
    told(PATIENTS)
    deleted = f"WITH gone AS (DELETE FROM coreg_{os.getpid()}.patients RETURNING *)"
    with pytest.raises(BadTable, match="read-only transaction"):
        read_table(source_of(ADDRESS, f"{deleted} SELECT * FROM gone"))
    assert len(read_table(rows("*", "patients"))) == 20


@server
@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT agee FROM patients", 'column "agee" does not exist'),
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM patients WHERE id = 'q'", "no rows"),
        ("SELECT id, id FROM patients", "more than once"),
        ("SET work_mem = '8MB'", "returns no rows"),
        ("SELECT 'Infinity'::numeric AS a", "Infinity"),
        ("SELECT 1e50::numeric AS a", "Decimal128.* Cast long numbers"),
    ],
)
def test_a_query_that_gives_no_table_is_refused(told, sql, words):
    told(PATIENTS)
    sql = sql.replace("patients", f"coreg_{os.getpid()}.patients")
    with pytest.raises(BadTable, match=words):
        read_table(source_of(ADDRESS, sql))


@server
def test_a_query_without_end_is_interrupted(monkeypatch):
    monkeypatch.setattr(databases, "SECONDS", 0.1)
    with pytest.raises(BadTable, match="statement timeout"):
        read_table(source_of(ADDRESS, "SELECT pg_sleep(60)"))


@server
def test_a_wrong_password_is_answered_with_the_place_for_it(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "open-barley")
    with pytest.raises(BadTable, match=r"PGPASSWORD.*\.pgpass") as error:
        read_table(source_of(ADDRESS, "SELECT 1"))
    assert "barley" not in str(error.value)


@server
def test_a_password_file_opens_it(tmp_path, monkeypatch):
    file = write(tmp_path, f"*:*:*:*:{os.environ['PGPASSWORD']}\n", "pgpass")
    file.chmod(0o600)
    monkeypatch.delenv("PGPASSWORD")
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert len(read_table(source_of(ADDRESS, "SELECT 1 AS a"))) == 1


@server
@pytest.mark.e2e
def test_a_command_reads_it_and_writes_no_password(tmp_path, told):
    told(PATIENTS)
    source = rows("*", "patients")
    write(
        tmp_path,
        f'coordinator = "127.0.0.1:1"\ndata = "{ADDRESS}"\nquery = "{source.sql}"\ntarget = "y"\n'
        'id = "id"\n',
        "agent.toml",
    )
    done = subprocess.run(
        [sys.executable, "-c", "from site_agent.cli.app import main; main()", "check", "--json"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert any("12 labelled" in event.get("text", "") for event in events), done.stdout
    everything = done.stdout + done.stderr
    for file in filter(Path.is_file, tmp_path.rglob("*")):
        everything += file.read_bytes().decode(errors="replace")
    assert os.environ["PGPASSWORD"] not in everything


# --- without a server -----------------------------------------------------------------------------


def test_no_server_is_an_error_and_no_wait():
    pytest.importorskip("psycopg")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(BadTable, match=r"the query failed \(.*refused"):
        read_table(source_of(f"postgresql://me@127.0.0.1:{port}/db", "SELECT 1"))


def test_a_server_that_does_not_answer_is_given_up(monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.setattr(databases, "CONNECT_SECONDS", 2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(BadTable, match="timeout"):
            read_table(source_of(f"postgresql://me@127.0.0.1:{port}/db", "SELECT 1"))


def test_without_the_extra_it_is_named(monkeypatch):
    monkeypatch.setattr("coreg_wire.terminal.command_line.find_spec", lambda _name: None)
    with pytest.raises(Exception, match=r"\[postgresql\]"):
        read_table(source_of("postgresql://me@127.0.0.1/db", "SELECT 1"))
