"""`coreg-agent synthesize`: the same rows at every site, from published ranges alone."""

import csv
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import kstest, truncnorm

from coreg_core.errors import UsageError
from site_agent.data.shared_set import load_site_tables
from site_agent.data.synthetic import Definitions

GIVEN = """
name = "loans"
rows = 2000
id = "person"
[columns]
age = { range = [18, 90], whole = true }
income = { range = [0, 200000], mean = 42000, sd = 30000 }
rate = { range = [-1.5, 2.5] }
sex = { values = ["f", "m"] }
"""

FIRST = ["loans-4abfbe3b-0000000", "76", "70153.8686", "1.97141981", "m"]


def written(folder: Path, text: str = GIVEN) -> tuple[Path, list[dict[str, str]]]:
    (folder / "columns.toml").write_text(text)
    out = folder / "shared.csv"
    Definitions.read(folder / "columns.toml").write(out)
    with out.open() as file:
        return out, list(csv.DictReader(file))


def test_columns_follow_their_distributions(tmp_path: Path) -> None:
    _, rows = written(tmp_path)
    rate = np.array([float(row["rate"]) for row in rows])
    assert kstest(rate, "uniform", args=(-1.5, 4.0)).pvalue > 1e-3
    income = np.array([float(row["income"]) for row in rows])
    ends = (0 - 42000) / 30000, (200000 - 42000) / 30000
    assert kstest(income, truncnorm(*ends, loc=42000, scale=30000).cdf).pvalue > 1e-3
    ages = {row["age"] for row in rows}
    assert ages <= {str(age) for age in range(18, 91)}
    assert len(ages) > 60
    assert 0.45 < np.mean([row["sex"] == "f" for row in rows]) < 0.55
    together = np.corrcoef(rate, income)[0, 1]
    assert abs(together) < 0.1, "columns are independent"


def test_sites_get_the_same_rows_and_other_definitions_other_ids(tmp_path: Path) -> None:
    """A known row, so that another release or platform cannot differ unnoticed."""
    out, rows = written(tmp_path)
    again, _ = written(tmp_path)
    assert out.read_bytes() == again.read_bytes()
    assert len({row["person"] for row in rows}) == 2000
    first = list(rows[0].values())
    assert first == FIRST
    (tmp_path / "other").mkdir()
    _, others = written(tmp_path / "other", GIVEN.replace("90]", "91]"))
    assert not {row["person"] for row in rows} & {row["person"] for row in others}
    assert [row["rate"] for row in rows] == [row["rate"] for row in others], "a column follows its own definition"


def test_a_site_reads_its_own_columns_of_the_table(tmp_path: Path) -> None:
    shared, _ = written(tmp_path)
    (tmp_path / "local.csv").write_text("person,age,rate,default\np1,30,0.5,1.0\np2,40,0.25,2.0\n")
    found = load_site_tables(tmp_path / "local.csv", "default", "person", unlabelled=shared)
    assert found.unlabelled.columns == ["age", "rate"]
    assert len(found.unlabelled_ids) == 2000
    assert any("not used" in note and "income" in note for note in found.notes)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("whole = true", "hole = true"), "columns.age.hole: unknown key; did you mean whole?"),
        (("range = [18, 90]", "range = [90, 18]"), "LOW below HIGH"),
        (("rows = 2000", "rows = 0"), "rows = 0"),
        ((", sd = 30000", ""), "mean and sd go together"),
        (('values = ["f", "m"]', "whole = true"), "needs either range"),
        (('id = "person"', 'id = "age"'), "'age' is the id column"),
        (("[columns]", "[columns"), "not TOML"),
    ],
)
def test_a_fault_of_the_file_names_its_key(tmp_path: Path, change: tuple[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named.replace("[", r"\[").replace("?", r"\?")):
        written(tmp_path, GIVEN.replace(*change))


def test_a_file_of_another_content_stays(tmp_path: Path) -> None:
    """Such as the site's own table, named by mistake."""
    (tmp_path / "shared.csv").write_text("person,age\np1,30\n")
    with pytest.raises(UsageError, match="holds something else"):
        written(tmp_path)
    assert (tmp_path / "shared.csv").read_text() == "person,age\np1,30\n"
    with pytest.raises(UsageError, match="cannot be written"):
        Definitions.read(tmp_path / "columns.toml").write(tmp_path / "none" / "shared.csv")
