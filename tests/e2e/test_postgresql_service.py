"""A site whose table is in a real PostgreSQL server: `make postgresql`, as tests/agent's."""

import csv
import os

import federation as of_processes
import pytest
from federation import federation, until

ADDRESS = os.environ.get("COREG_POSTGRESQL", "")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not ADDRESS, reason="no server: COREG_POSTGRESQL is not set"),
]


def test_a_serving_agent_trains_with_its_rows_as_they_are_now(tmp_path, monkeypatch):
    psycopg = pytest.importorskip("psycopg")
    with federation(tmp_path) as fed, psycopg.connect(ADDRESS, autocommit=True) as connection:
        _, *rows = csv.reader((tmp_path / "north.csv").read_text().splitlines())
        connection.execute("DROP TABLE IF EXISTS north")
        connection.execute("CREATE TABLE north (id text, a float8, b float8, c float8, y float8)")
        for row in rows:
            numbers = [float(cell) if cell else None for cell in row[1:]]
            connection.execute("INSERT INTO north VALUES (%s, %s, %s, %s, %s)", [row[0], *numbers])
        fed.serve()
        fed.stays("south")
        fed.stays("west")
        table = f'table = "{ADDRESS}"\nquery = "SELECT * FROM north"'
        text = of_processes.SERVING.replace('table = "{site}.csv"', table)
        monkeypatch.setattr(of_processes, "SERVING", text)
        fed.stays("north")
        fed.study("first")
        first = fed.submit("first")
        until(lambda: fed.over(first))
        assert fed.kept(first) == fed.undisturbed(first), "the bits of the CSV file"

        connection.execute("UPDATE north SET y = y * 1.25")
        second = fed.submit("first")
        until(lambda: fed.over(second))
        assert fed.kept(second) != fed.kept(first)

        connection.execute("DROP TABLE north")
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        password = os.environ["PGPASSWORD"].encode()
        assert [path for path in files if password in path.read_bytes()] == []
