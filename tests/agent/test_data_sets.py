"""The data sets of a serving agent: chosen by the plan's name, and read again when a file has
changed.
"""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from agent_files import inputs, prepared, write

from coreg_core.errors import BadData, UsageError
from site_agent.config.settings import inputs_of, read_settings
from site_agent.data import databases
from site_agent.data.data_sets import DataSets
from site_agent.data.sources import BadTable, DatabaseQuery, at, source_of
from site_agent.data.tables import read_table

TABLE = (
    "id,a,b,y\n"
    + "".join(f"p{i},{i % 3},{i * 0.5},{i + 0.25}\n" for i in range(6))
    + "q1,1,2,\nq2,2,0.5,\n"
)


@pytest.fixture
def data_sets(tmp_path):
    return DataSets({"patients": inputs(write(tmp_path, TABLE, "local.csv"))}, b"salt")


def test_a_data_set_is_read_again_when_its_file_changed_and_not_before(tmp_path, data_sets):
    first, read = data_sets.get("patients")
    same, again = data_sets.get("patients")
    assert read
    assert not again
    assert same is first
    write(tmp_path, TABLE.replace("p5,2,2.5,5.25", "p5,2,2.5,7.25"), "new.csv").replace(
        tmp_path / "local.csv"
    )
    other, read = data_sets.get("patients")
    assert read
    assert other.data.y[5] == 7.25
    assert first.data.y[5] == 5.25, "a run that is under way keeps what it began with"
    (tmp_path / "local.csv").unlink()
    with pytest.raises(BadData, match="no such file"):
        data_sets.get("patients")


def test_a_changed_database_is_read_again(tmp_path):
    path = database(tmp_path, [*ROWS[:2], ("3", 1, "x", None)])
    sets = DataSets({"patients": inputs(DatabaseQuery(path, VISITS))}, b"")
    assert [sets.get("patients")[1] for _ in range(2)] == [True, False]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        sets.get("patients")
        with connection:  # the row is not in the database's own file yet
            connection.execute("INSERT INTO visits VALUES ('p9', 7, 'x', 3)")
        prepared, read = sets.get("patients")
        assert read
        assert len(prepared.data.X) == 3


def test_a_table_that_changes_while_it_is_read_is_refused(tmp_path, data_sets):
    def read(_inputs, _salt, _aligned, _classes):
        write(tmp_path, TABLE + "q3,1,1,\n", "local.csv")

    with pytest.raises(BadData, match="changed during reading"):
        DataSets({"patients": data_sets.inputs("patients")}, b"", read).get("patients")


def test_a_plan_chooses_by_name_or_takes_the_only_data_set(data_sets):
    assert data_sets.choose("patients") == data_sets.choose("") == "patients"
    with pytest.raises(UsageError) as error:
        data_sets.choose("staff")
    assert "patients" not in str(error.value), "the coordinator hears it"
    table = data_sets.inputs("patients")
    with pytest.raises(UsageError, match="names no data set, and this site has several"):
        DataSets({"a": table, "b": table}, b"").choose("")
    assert DataSets({"": table}, b"").choose("whatever") == "", (
        "a table without a name serves every plan"
    )


# --- a file or a query ----------------------------------------------------------------------------

VISITS = "SELECT id, a, c, y FROM visits"
ROWS = [
    ("p1", 1.5, "x", 1),
    ("p2", 2, None, 2.25),
    (3, 1e100, "y, z", None),
    (4.0, -0.1, "x", None),
]


def database(folder, rows=ROWS):
    with closing(sqlite3.connect(folder / "clinic.db")) as connection, connection:
        connection.execute("CREATE TABLE visits (id, a, c, y)")
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows)
    return folder / "clinic.db"


def test_the_same_bits_as_a_csv_file_of_its_rows(tmp_path):
    rows = 'id,a,c,y\np1,1.5,x,1\np2,2,,2.25\n3,1e100,"y, z",\n4,-0.1,x,\n'
    one = prepared(write(tmp_path, rows)).data
    other = prepared(DatabaseQuery(database(tmp_path), VISITS)).data
    assert other.X.tobytes() == one.X.tobytes()
    assert other.Z.tobytes() == one.Z.tobytes()
    assert other.ids_digest == one.ids_digest


def test_a_query_writes_nothing(tmp_path):
    path = database(tmp_path)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    for sql in (
        "DELETE FROM visits",
        "CREATE TABLE more (a)",
        "UPDATE visits SET a = 0 RETURNING *",
    ):
        with pytest.raises(
            BadTable, match=r"clinic\.db: (the query failed|.* are not valid .read. queries)"
        ):
            read_table(DatabaseQuery(path, sql))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [p.name for p in tmp_path.iterdir()] == ["clinic.db"]


REFUSED = {
    "no such database": (DatabaseQuery(Path("none.db"), "SELECT 1"), "no such file"),
    "no database": (DatabaseQuery(Path("t.csv"), "SELECT * FROM t"), "the query failed"),
    "a misspelt column": (
        DatabaseQuery(Path("clinic.db"), "SELECT agee FROM visits"),
        "no such column: agee",
    ),
    "two statements": (DatabaseQuery(Path("clinic.db"), "SELECT 1; SELECT 2"), "one statement"),
    "a column twice": (
        DatabaseQuery(Path("clinic.db"), "SELECT id, id FROM visits"),
        "'id' appears more",
    ),
    "no rows": (DatabaseQuery(Path("clinic.db"), "SELECT * FROM visits WHERE id = 'q'"), "no rows"),
    "bytes": (
        DatabaseQuery(Path("clinic.db"), "SELECT id, x'00ff' AS b FROM visits"),
        "column 'b': holds Binary",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_query_that_gives_no_table_is_refused(tmp_path, why):
    database(tmp_path)
    lines = ["id,a"] * 200
    write(tmp_path, "\n".join([*lines, ""]))
    query, words = REFUSED[why]
    with pytest.raises(BadTable) as error:
        (found := read_table(at(query, tmp_path))).select(found.columns)
    assert words in str(error.value)


def test_a_query_without_end_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(databases, "SECONDS", 0.05)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(BadTable, match="interrupted"):
        read_table(DatabaseQuery(database(tmp_path), endless))


def test_a_snapshot_asks_once_and_the_next_one_again(tmp_path):
    path = database(tmp_path)
    query = DatabaseQuery(path, VISITS)
    with databases.one_snapshot():
        first = read_table(query)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DELETE FROM visits WHERE id = 'p1'")
        assert len(read_table(query)) == len(first) == 4
    assert len(read_table(query)) == 3


# --- addresses ------------------------------------------------------------------------------------


def test_the_address_of_a_database_needs_a_query_and_a_file_takes_none():
    assert source_of("sqlite:c.db", " SELECT 1 ") == DatabaseQuery(Path("c.db"), "SELECT 1")
    assert source_of("sqlite:c.db?SELECT 1") == DatabaseQuery(Path("c.db"), "SELECT 1")
    address = "postgresql://me@db.example.org:5433/clinic?sslmode=require"
    assert source_of(address, "SELECT 1") == DatabaseQuery(address, "SELECT 1")
    assert at(source_of(address, "SELECT 1"), Path("/etc")) == DatabaseQuery(address, "SELECT 1")
    for text, sql, words in (
        ("sqlite:c.db", "", "which rows"),
        (address, "", "which rows"),
        ("t.csv", "SELECT 1", "a query needs a database"),
        ("mysql://me@host/db", "SELECT 1", "mysql: is neither"),
        ("sqlite:", "SELECT 1", "names no database"),
    ):
        with pytest.raises(UsageError, match=words):
            source_of(text, sql)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:sesame@host/db",
        "postgresql://me:se/same@host/db",
        "postgres://host/db?user=me&password=sesame",
        "postgresql://host/db?sslmode=require&%70assword=sesame",
        "postgresql:/me:sesame@host/db",
        "mysql://me:sesame@host/db",
        "host=db user=me password = sesame",
        Path("postgresql://me:sesame@host/db"),
    ],
)
def test_an_address_with_a_password_is_refused_and_not_repeated(text):
    with pytest.raises(UsageError, match=r"holds a password.*PGPASSWORD") as error:
        inputs_of({"data": text, "query": "SELECT 1"})
    assert "same" not in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "data = {address}",
        "dta = {address}",
        "data = 't.csv'\nunlabelled = {address}",
        "data = {address} x",
    ],
)
def test_no_error_of_agent_toml_repeats_a_password(tmp_path, line):
    address = '"postgresql://me:sesame@host/db"'
    path = write(tmp_path, f"target = 'y'\n{line.format(address=address)}\n", "agent.toml")
    with pytest.raises(UsageError) as error:
        read_settings(path, {})
    assert "sesame" not in str(error.value)
