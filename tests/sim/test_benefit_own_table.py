"""`coreg-sim benefit` on a user's own table, and on a division of its columns that is given."""

import json
import re

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_allclose
from typer.testing import CliRunner

from coreg_core.errors import BadData, UsageError
from coreg_sim.benefit.own import OwnTable
from coreg_sim.benefit.partition import REGIMES, partition
from coreg_sim.cli.app import app
from site_agent.data.inputs import Inputs
from site_agent.data.sources import BadTable


def benefit(*arguments, **options):
    return CliRunner().invoke(app, ["benefit", *map(str, arguments)], **options)


def test_an_own_table_has_one_answer_for_each_regime(tmp_path):
    rng = default_rng(0)
    X = rng.normal(size=(700, 4))
    y = X.sum(axis=1) + rng.normal(size=700)
    lines = np.column_stack([X, y, 2 * y + 1])
    rows = "\n".join(";".join(f"{v:.4f}".replace(".", ",") for v in line) for line in lines)
    (tmp_path / "mine.csv").write_text(f"a;b;c;d;y;after\n{rows}\n")
    assert "study says" not in benefit("--help").stdout
    options = (
        "--data",
        tmp_path / "mine.csv",
        "--target",
        "y",
        "--regimes",
        "n10,n20",
        "--draws",
        1,
    )
    result = benefit(*options)
    assert result.exit_code == 0
    assert result.exception is None
    told = " ".join(result.stdout.split())
    for n in (10, 20):
        assert re.search(
            rf"n{n} \(3 sites of {n} labels, 315 shared rows\), 3 simulated sites: joined model"
            r" [+-]",
            told,
        )
    assert "The verdict may be void: column 'after' has nearly the order of the target" in told
    assert "labelled rows repeat" not in told
    assert "benefit: 2 of 2 federations" in result.stderr
    printed = json.loads(benefit(*options, "--json").stdout)
    assert set(printed["regimes"]) == {"n10", "n20"}
    assert printed["refused_by_default"] == {"n10": 30, "n20": 60}
    assert set(printed["regimes"]["n10"]["joined"]) == {"mean_change", "median_change", "harmed"}
    assert any(line.startswith("Verdict for n20: ") for line in printed["findings"])


def test_a_table_that_contains_its_target_is_named_by_column_or_as_a_whole(tmp_path):
    """A text becomes several features, and its column is named once; two dates tell a stay only
    together.
    """
    rng = default_rng(0)
    begin = rng.integers(0, 300, 300)
    stay = rng.integers(1, 30, 300)
    day = np.datetime64("2024-01-01")
    rows = []
    for b, s in zip(begin, stay, strict=True):
        band = "short"
        if s > 14:
            band = "long"
        rows.append(f"{day + b},{day + b + s},{band},{s}")
    (tmp_path / "stay.csv").write_text("in,out,band,days\n" + "\n".join(rows) + "\n")
    dates = {"in": "%Y-%m-%d"}

    def read(target, drop, **more):
        table = Inputs(table=tmp_path / "stay.csv", target=target, drop=drop, dates=dates | more)
        return OwnTable(table).read()[2]

    [leak] = read("days", ("band",), out="%Y-%m-%d")
    assert "a linear model of all columns predicts the target almost exactly (R² 1.000" in leak
    assert read("days", ("band", "out")) == ()
    text = (tmp_path / "stay.csv").read_text().replace("days", "long", 1).splitlines()
    coded = [text[0], *(f"{line.rpartition(',')[0]},{int('long' in line)}" for line in text[1:])]
    (tmp_path / "stay.csv").write_text("\n".join(coded) + "\n")
    [leak] = read("long", ("out",))
    assert leak.startswith("column 'band' has nearly the order of the target")
    assert leak.endswith("Then add --drop band.")


def test_names_that_are_wrong_and_tables_that_are_small_are_refused(tmp_path):
    (tmp_path / "own.csv").write_text("x,y\n1,2\n3,4\n")
    (tmp_path / "one.csv").write_text("a,b,y,long,kind\n1,2,5,no,p\n2,3,5,yes,q\n3,4,5,,r\n")
    table = ("--data", tmp_path / "own.csv", "--target", "y")
    one = ("--data", tmp_path / "one.csv", "--target")
    for options, why in (
        ((*table, "--regimes", "n10", "n20"), "unexpected n20. Write several names with commas"),
        (
            (tmp_path / "own.csv", "--target", "y"),
            f"Give a table with --data {tmp_path / 'own.csv'}.",
        ),
        (("--data", tmp_path / "own.csv"), "Name your table and the column to predict"),
        ((*table, "--regimes", "n30"), "n30: no such regime. There are n10, n20, n50,"),
        (
            table,
            (
                "2 rows with a target, 1 columns. n20 needs 3 columns and 190 rows with a target;"
                " n50 needs"
            ),
        ),
        ((*one, "y"), "the target 'y' has one value, 5"),
        (
            (*one, "long"),
            (
                "column 'long': the target has 2 texts: 'no', 'yes'. If it is yes/no, add"
                " --positive no or --positive yes: the value"
            ),
        ),
        (
            (*one, "kind"),
            (
                "3 texts: 'p', 'q', 'r'. If they are classes, the study of a federation names all"
                " of them (classes in [model]), and coreg-sim benefit needs a column of yes and no"
            ),
        ),
    ):
        result = benefit(*options)
        assert isinstance(result.exception, UsageError | BadData), result.output
        assert why in str(result.exception)


VIEWS = """data = "mine.csv"
target = "y"
[sites.b]
columns = ["c"]
[sites.a]
columns = ["ward", "since", "age"]
dates = {since = "%Y-%m-%d"}
"""


@pytest.fixture
def divided(tmp_path):
    """A table with a text, a date, a constant and gaps, and its division over two sites."""
    rng = default_rng(0)
    c, age = rng.normal(size=(2, 400))
    rows = []
    for i in range(400):
        shown_age = f"{age[i]:.3f}"
        if i % 50 == 1:
            shown_age = "unknown"
        label = f"{c[i] + age[i] + i % 3:.3f}"
        if i % 10 == 0:
            label = ""
        ward = "ABC"[i % 3]
        rows.append(f"{c[i]:.3f},{ward},2025-0{1 + i % 9}-11,{shown_age},same,{label}")
    (tmp_path / "mine.csv").write_text("c,ward,since,age,k,y\n" + "\n".join(rows))
    (tmp_path / "views.toml").write_text(VIEWS.replace('"age"]', '"age", "k"]'))
    return tmp_path


def test_a_division_that_is_given_has_an_answer_for_each_site(divided):
    options = ("--views", divided / "views.toml", "--regimes", "n10,one", "--draws", 1)
    with pytest.raises(BadTable, match=r"--na-values"):
        benefit(*options, catch_exceptions=False)
    (divided / "mine.csv").write_text((divided / "mine.csv").read_text().replace("unknown", ""))
    result = benefit(*options)
    assert result.exit_code == 0
    assert result.exception is None
    told = " ".join(result.stdout.split())
    change = r"[+-]\d+\.\d % \(\d+ %\)"
    assert re.search(
        rf"n10 \(2 sites of 10 labels, 162 shared rows\), by site .* counts: joined model score "
        rf"a {change} {change} b {change} .* Verdict for a: [^:.]+\. Verdict for b: [^:.]+\. ",
        told,
    )
    assert re.search(
        r"one \(100 labels at the first .*\).* b [+-].* \(\d+ %\) without labels", told
    )
    assert "harmed" in told
    assert (
        "0 at each of the others, 162 shared rows), 1 simulated sites with labels: joined model"
        in told
    )
    assert "With two sites each can compute the answers of the other" in told
    assert (
        "40 of 400 rows have no target. In a federation they would be shared rows" in result.stderr
    )


def test_the_columns_of_a_division_are_those_of_the_file(divided):
    (divided / "mine.csv").write_text((divided / "mine.csv").read_text().replace("unknown", ""))
    table = OwnTable.divided(divided / "views.toml").read()[0]
    drawn = partition(table, REGIMES["n20"].with_sites(2), (0,))
    assert [len(rows) for rows in drawn.labelled] == [20, 20]
    assert [X.shape[1] for X in drawn.columns] == [
        3 + 1 + 2,
        1,
    ], "levels, days, a number and its gaps"
    c = [
        float(line.split(",")[0])
        for line in (divided / "mine.csv").read_text().splitlines()[1:]
        if line[-1] != ","
    ]
    assert_allclose(drawn.columns[1][:, 0], c)


def test_what_a_division_refuses(divided):
    views = divided / "views.toml"
    for text, options, why in (
        (VIEWS, ["--regimes", "n10,M5"], "--regimes M5: about the number of sites"),
        (VIEWS, ["--target", "y"], "names the table and its columns"),
        (
            VIEWS.replace("columns", "columnz", 1),
            [],
            "sites.b.columnz: unknown key; did you mean columns?",
        ),
        (VIEWS.replace('"c"', '"k"'), [], "all columns of a site are constant"),
        (VIEWS.replace('"c"', '"y"'), [], "'y' is the target. Remove it from the columns of b"),
        (VIEWS.partition("[sites.a]")[0], [], "one site has no other to join"),
        ('positive = "yes"\n' + VIEWS, [], "Give --positive or --na-values beside --views"),
    ):
        views.write_text(text)
        (divided / "mine.csv").write_text((divided / "mine.csv").read_text().replace("unknown", ""))
        result = benefit("--views", views, *options)
        assert isinstance(result.exception, UsageError | BadTable), result.output
        assert why in str(result.exception)


def test_an_own_table_is_read_as_an_agent_reads_it_and_a_column_of_whole_numbers_is_doubted(
    tmp_path,
):
    lines = [
        f"p{i};2024-01-{i % 28 + 1:02};{i % 7},5;{'' if i == 3 else i % 5};{i},25;{i + 7}"
        for i in range(60)
    ]
    (tmp_path / "own.csv").write_text("\n".join(["who;when;x;z;y;number", *lines]) + "\n")
    given = Inputs(
        table=tmp_path / "own.csv", target="y", drop=("who",), dates={"when": "%Y-%m-%d"}
    )
    table, warnings, _ = OwnTable(given).read()
    assert sorted(block.shape[1] for block in table.attributes) == [
        1,
        1,
        1,
        2,
    ], "of z also whether it is empty"
    assert (
        "column 'number' has a different whole number in every row. Add --drop number if it is"
        " an id." in warnings
    )
