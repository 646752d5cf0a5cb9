"""A query to an SQLite database is a table like any other: the same bits as the CSV file of its rows, and nothing is written."""

import hashlib
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from federation import run

from coreg_core.errors import UsageError
from site_agent.config.agent_toml import read_service_settings
from site_agent.config.settings import read_settings
from site_agent.data import sqlite_rows
from site_agent.data.data_sets import DataSets
from site_agent.data.errors import BadTable
from site_agent.data.prepare import Inputs, prepare
from site_agent.data.sources import Query, at, files_of, source_of
from site_agent.data.tables import read_table

VISITS = "SELECT id, a, c, y FROM visits"


def database(folder, rows, name="clinic.db"):
    path = folder / name
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE visits (id, a, c, y)")
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?)", rows)
    return path


ROWS = [("p1", 1.5, "x", 1), ("p2", 2, None, 2.25), (3, 1e300, "y, z", None), (4.0, -0.1, "x", None)]


def test_the_same_bits_as_a_csv_file_of_its_rows(tmp_path):
    path = database(tmp_path, ROWS)
    (tmp_path / "t.csv").write_text(
        'id,a,c,y\np1,1.5,x,1\np2,2,,2.25\n3,1e300,"y, z",\n4,-0.1,x,\n'.replace("1e300", "1e100")
    )
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE visits SET a = 1e100 WHERE a > 1e200")
    one = prepare(Inputs(tmp_path / "t.csv", "y", "id"))
    other = prepare(Inputs(Query(path, VISITS), "y", "id"))
    assert other.data.X.tobytes() == one.data.X.tobytes()
    assert other.data.Z.tobytes() == one.data.Z.tobytes()
    assert other.data.ids_digest == one.data.ids_digest


@given(
    st.lists(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**63 - 1)), min_size=1)
)
def test_every_number_comes_back_to_the_bit(tmp_path_factory, values):
    path = database(tmp_path_factory.mktemp("q"), [(str(i), v, "x", 1) for i, v in enumerate(values)])
    assert read_table(Query(path)).numbers("a").tolist() == [float(v) for v in values]


def test_nothing_is_written(tmp_path):
    path = database(tmp_path, ROWS)
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    for sql in ("DELETE FROM visits", "CREATE TABLE more (a)", "UPDATE visits SET a = 0 RETURNING *"):
        with pytest.raises(BadTable, match=r"clinic\.db: (cannot be asked|the statement gives no rows)"):
            read_table(Query(path, sql))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [p.name for p in tmp_path.iterdir()] == ["clinic.db"]


REFUSED = {
    "no such database": (Query(Path("none.db")), "no such file"),
    "no database": (Query(Path("t.csv")), "cannot be asked"),
    "a misspelt column": (Query(Path("clinic.db"), "SELECT agee FROM visits"), "no such column: agee"),
    "two statements": (Query(Path("clinic.db"), "SELECT 1; SELECT 2"), "one statement"),
    "a column twice": (Query(Path("clinic.db"), "SELECT id, id FROM visits"), "'id' stands there twice"),
    "no rows": (Query(Path("clinic.db"), "SELECT * FROM visits WHERE id = 'q'"), "no rows"),
    "bytes": (Query(Path("clinic.db"), "SELECT id, x'00ff' AS b FROM visits"), "column 'b': holds bytes"),
    "two tables": (Query(Path("two.db")), "has 2 tables (more, visits)"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_in_a_sentence(tmp_path, why):
    database(tmp_path, ROWS)
    (tmp_path / "t.csv").write_text("id,a\n" * 200)
    with closing(sqlite3.connect(tmp_path / "two.db")) as connection, connection:
        connection.execute("CREATE TABLE more (a)")
        connection.execute("CREATE VIEW visits AS SELECT 1")
    query, said = REFUSED[why]
    with pytest.raises(BadTable) as error:
        read_table(at(query, tmp_path))
    assert said in str(error.value)


def test_a_query_without_end_is_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_rows, "SECONDS", 0.05)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    with pytest.raises(BadTable, match="interrupted"):
        read_table(Query(database(tmp_path, ROWS), endless))


def test_what_the_option_says():
    assert source_of("a/b.csv") == Path("a/b.csv")
    assert source_of("sqlite:a/b.db") == Query(Path("a/b.db"))
    text = "sqlite:b.db?SELECT a//2, '?' FROM t -- ./x"
    assert source_of(text, Path("/f")) == Query(Path("/f/b.db"), "SELECT a//2, '?' FROM t -- ./x")
    for text, said in (("duckdb:x.db?SELECT 1", "COPY"), ("sqlite:?SELECT 1", "names no database")):
        with pytest.raises(UsageError, match=said):
            source_of(text)


def test_in_files_paths_are_relative_to_them(tmp_path):
    (tmp_path / "agent.toml").write_text('data = "sqlite:clinic.db?SELECT 1"\nunlabelled = "s.csv"\n')
    settings = read_settings(tmp_path / "agent.toml", {}, ("data",))
    assert (settings.data, settings.unlabelled) == (Query(tmp_path / "clinic.db", "SELECT 1"), tmp_path / "s.csv")
    (tmp_path / "service.toml").write_text(
        'coordinator = "c:1"\n[data.patients]\ntable = "sqlite:clinic.db"\ntarget = "y"\nid = "id"\ndates = ["d"]\n'
    )
    inputs = read_service_settings(tmp_path / "service.toml").data["patients"].inputs(tmp_path)
    assert (inputs.data, inputs.dates) == (Query(tmp_path / "clinic.db"), ("d",))


def test_an_agent_that_stays_reads_a_changed_database_again(tmp_path):
    path = database(tmp_path, [*ROWS[:2], ("3", 1, "x", None)])
    sets = DataSets({"patients": Inputs(Query(path, VISITS), "y", "id")}, b"")
    assert sets.get("patients")[1]
    assert not sets.get("patients")[1]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        sets.get("patients")
        with connection:
            connection.execute("INSERT INTO visits VALUES ('p9', 7, 'x', 3)")
        assert len(files_of(Query(path))) == 2  # the row is not in the database's own file yet
        prepared, read = sets.get("patients")
        assert read
        assert len(prepared.data.X) == 3


def test_check_takes_a_query(tmp_path):
    database(tmp_path, [(f"p{i}", i, "x", i if i < 4 else None) for i in range(8)])
    words = ("--target", "y", "--id", "id", "--insecure", "--name", "north", "--coordinator", "127.0.0.1:9")
    code, out, err = run("coreg-agent", "check", "--data", f"sqlite:clinic.db?{VISITS}", *words, cwd=tmp_path)
    assert code == 0, err
    assert "4 labelled and 4 unlabelled instances" in out
