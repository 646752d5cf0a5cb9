"""A query to an SQLite database is a table like any other: the bits of the CSV file of its rows, and nothing is written."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from agent_files import prepared, write

from coreg_core.errors import UsageError
from site_agent.data import sources
from site_agent.data.errors import BadTable
from site_agent.data.sources import Query, at, source_of
from site_agent.data.tables import read_table

VISITS = "SELECT id, a, c, y FROM visits"
ROWS = [("p1", 1.5, "x", 1), ("p2", 2, None, 2.25), (3, 1e100, "y, z", None), (4.0, -0.1, "x", None)]


def database(folder, rows=ROWS):
    with closing(sqlite3.connect(folder / "clinic.db")) as connection, connection:
        connection.execute("CREATE TABLE visits (id, a, c, y)")
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows)
    return folder / "clinic.db"


def test_the_same_bits_as_a_csv_file_of_its_rows(tmp_path):
    rows = 'id,a,c,y\np1,1.5,x,1\np2,2,,2.25\n3,1e100,"y, z",\n4,-0.1,x,\n'
    one = prepared(write(tmp_path, rows)).data
    other = prepared(Query(database(tmp_path), VISITS)).data
    assert (other.X.tobytes(), other.Z.tobytes()) == (one.X.tobytes(), one.Z.tobytes())
    assert other.ids_digest == one.ids_digest


def test_a_query_writes_nothing(tmp_path):
    path = database(tmp_path)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    for sql in ("DELETE FROM visits", "CREATE TABLE more (a)", "UPDATE visits SET a = 0 RETURNING *"):
        with pytest.raises(BadTable, match=r"clinic\.db: (the query failed|the statement returns no rows)"):
            read_table(Query(path, sql))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [p.name for p in tmp_path.iterdir()] == ["clinic.db"]


REFUSED = {
    "no such database": (Query(Path("none.db")), "no such file"),
    "no database": (Query(Path("t.csv")), "the query failed"),
    "a misspelt column": (Query(Path("clinic.db"), "SELECT agee FROM visits"), "no such column: agee"),
    "two statements": (Query(Path("clinic.db"), "SELECT 1; SELECT 2"), "one statement"),
    "a column twice": (Query(Path("clinic.db"), "SELECT id, id FROM visits"), "'id' twice"),
    "no rows": (Query(Path("clinic.db"), "SELECT * FROM visits WHERE id = 'q'"), "no rows"),
    "bytes": (Query(Path("clinic.db"), "SELECT id, x'00ff' AS b FROM visits"), "column 'b': holds bytes"),
    "two tables": (Query(Path("two.db")), "has 2 tables (more, visits)"),
}


def used(source):
    found = read_table(source)
    return found.select(found.columns)


@pytest.mark.parametrize("why", REFUSED)
def test_a_query_that_gives_no_table_is_refused(tmp_path, why):
    database(tmp_path)
    write(tmp_path, "id,a\n" * 200)
    with closing(sqlite3.connect(tmp_path / "two.db")) as connection, connection:
        connection.execute("CREATE TABLE more (a)")
        connection.execute("CREATE VIEW visits AS SELECT 1")
    query, words = REFUSED[why]
    with pytest.raises(BadTable) as error:
        used(at(query, tmp_path))
    assert words in str(error.value)


def test_a_query_without_end_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "SECONDS", 0.05)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(BadTable, match="interrupted"):
        read_table(Query(database(tmp_path), endless))


def test_a_source_is_a_file_or_a_query():
    assert source_of("a/b.csv") == Path("a/b.csv")
    assert source_of("sqlite:a/b.db") == Query(Path("a/b.db"))
    text = "sqlite:b.db?SELECT a//2, '?' FROM t -- ./x"
    assert source_of(text, Path("/f")) == Query(Path("/f/b.db"), "SELECT a//2, '?' FROM t -- ./x")
    for text, words in (("duckdb:x.db?SELECT 1", "COPY"), ("sqlite:?SELECT 1", "names no database")):
        with pytest.raises(UsageError, match=words):
            source_of(text)
