"""The data sets of a serving agent: chosen by the plan's name, and read again when a file has changed."""

import sqlite3
from contextlib import closing

import pytest
from agent_files import inputs, write
from test_sources import ROWS, VISITS, database

from coreg_core.errors import BadData, UsageError
from site_agent.data.prepare import DataSets
from site_agent.data.sources import Query, files_of

TABLE = "id,a,b,y\n" + "".join(f"p{i},{i % 3},{i * 0.5},{i + 0.25}\n" for i in range(6)) + "q1,1,2,\nq2,2,0.5,\n"


@pytest.fixture
def data_sets(tmp_path):
    return DataSets({"patients": inputs(write(tmp_path, TABLE, "local.csv"))}, b"salt")


def test_a_data_set_is_read_again_when_its_file_changed_and_not_before(tmp_path, data_sets):
    first, read = data_sets.get("patients")
    same, again = data_sets.get("patients")
    assert (read, again, same is first) == (True, False, True)
    write(tmp_path, TABLE.replace("p5,2,2.5,5.25", "p5,2,2.5,7.25"), "new.csv").replace(tmp_path / "local.csv")
    other, read = data_sets.get("patients")
    assert (read, other.data.y[5]) == (True, 7.25)
    assert first.data.y[5] == 5.25, "a run that is under way keeps what it began with"
    (tmp_path / "local.csv").unlink()
    with pytest.raises(BadData, match="no such file"):
        data_sets.get("patients")


def test_a_changed_database_is_read_again(tmp_path):
    path = database(tmp_path, [*ROWS[:2], ("3", 1, "x", None)])
    sets = DataSets({"patients": inputs(Query(path, VISITS))}, b"")
    assert [sets.get("patients")[1] for _ in range(2)] == [True, False]
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        sets.get("patients")
        with connection:
            connection.execute("INSERT INTO visits VALUES ('p9', 7, 'x', 3)")
        assert len(files_of(Query(path))) == 2  # the row is not in the database's own file yet
        prepared, read = sets.get("patients")
        assert (read, len(prepared.data.X)) == (True, 3)


def test_a_table_that_changes_while_it_is_read_is_refused(tmp_path, data_sets):
    def read(_inputs, _salt, _aligned):
        write(tmp_path, TABLE + "q3,1,1,\n", "local.csv")

    with pytest.raises(BadData, match="changed during reading"):
        DataSets({"patients": data_sets.inputs("patients")}, b"", read).get("patients")


def test_a_plan_chooses_by_name_or_takes_the_only_data_set(data_sets):
    assert data_sets.choose("patients") == data_sets.choose("") == "patients"
    with pytest.raises(UsageError) as error:
        data_sets.choose("staff")
    assert "patients" not in str(error.value), "the coordinator hears it"
    table = data_sets.inputs("patients")
    data_sets.relist({"a": table, "b": table.model_copy(update={"scale": False})})
    with pytest.raises(UsageError, match="names no data set, and this site has several"):
        data_sets.choose("")
    data_sets.relist({"": table})
    assert data_sets.choose("whatever") == "", "a table without a name serves every plan"
