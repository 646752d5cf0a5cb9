"""Tables that a views.toml divides, and dates in the commands that read a table."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from coreg_core.errors import BadData, UsageError
from coreg_sim.cli.app import app
from coreg_sim.federation.problems import partitioned, read_views


def write_table(path, seed, who=lambda i: ""):
    rng = np.random.default_rng(seed)
    rows = [
        f"{a:.4f},{b:.4f},{'red' if c > 0 else 'blue'},{a + b:.4f},{who(i)}"
        for i, (a, b, c) in enumerate(rng.normal(size=(90, 3)))
    ]
    path.write_text("\n".join(["a,b,kind,y,who", *rows]) + "\n")


def views_of(folder, text, who=lambda i: ""):
    write_table(folder / "t.csv", 0, who)
    (folder / "views.toml").write_text(f'data = "t.csv"\ntarget = "y"\n{text}')
    return folder / "views.toml"


SITES = '[sites.two]\ncolumns = ["b", "kind"]\ncategorical = ["kind"]\n[sites.one]\ncolumns = ["a"]\n'


def test_columns_are_the_sites_that_the_file_says_and_rows_are_drawn(tmp_path):
    views = read_views(views_of(tmp_path, SITES))
    problem = partitioned(views, 10, 30, seed=1)
    assert list(problem.sites) == ["one", "two"]
    assert [data.X.shape for data in problem.sites.values()] == [(10, 1), (10, 3)]
    assert [data.Z.shape for data in problem.sites.values()] == [(30, 1), (30, 3)]
    assert [X.shape for X in problem.held_out] == [(40, 1), (40, 3)]
    assert len(problem.held_out_y) == 40
    assert not np.array_equal(partitioned(views, 10, 30, seed=2).sites["one"].y, problem.sites["one"].y)
    assert len(partitioned(views, 10, None, seed=1).sites["one"].Z) == 46
    with pytest.raises(BadData, match="90 rows with a target are too few for 2 x 40"):
        partitioned(views, 40, 30, seed=1)


def test_labelled_rows_can_be_shared_too(tmp_path):
    views = read_views(views_of(tmp_path, SITES))
    apart, common = (partitioned(views, 10, 30, seed=1, common=each) for each in (False, True))
    for name, data in common.sites.items():
        assert (len(data.Z), len(set(data.positions.tolist()))) == (30 + 2 * 10, 10)
        np.testing.assert_array_equal(data.Z[data.positions], data.X)
        np.testing.assert_array_equal(data.y, apart.sites[name].y)
        assert set(apart.sites[name].positions.tolist()) == {-1}


def test_rows_are_labelled_where_the_file_says(tmp_path):
    who = lambda i: "one" if i < 12 else "two" if i < 20 else "held-out" if i < 30 else ""  # noqa: E731
    views = read_views(views_of(tmp_path, f'labelled_at = "who"\n{SITES}', who))
    problem = partitioned(views, 99, None, seed=0)
    assert [len(data.y) for data in problem.sites.values()] == [12, 8]
    assert (len(problem.held_out_y), len(problem.sites["one"].Z)) == (10, 60)
    listed = read_views(
        views_of(tmp_path, f'labelled_at = "who"\n{SITES}', lambda i: "one" if i < 12 else "two" if i < 20 else "")
    )
    drawn = partitioned(listed, 99, 25, seed=0)
    assert (len(drawn.held_out_y), len(drawn.sites["one"].Z)) == (23, 25)  # a third of the 70 that are nobody's
    assert not np.array_equal(partitioned(listed, 99, 25, seed=1).held_out_y, drawn.held_out_y)


@pytest.mark.parametrize(
    ("text", "who", "error", "says"),
    [
        ("", "", UsageError, "sites: this key is missing"),
        ('colour = "red"\n' + SITES, "", UsageError, "colour: unknown key"),
        ('[sites.held-out]\ncolumns = ["a"]\n', "", UsageError, "marks test rows"),
        ('[sites.one]\ncolumns = ["A"]\n', "", BadData, "Did you mean 'a'"),
        ('[sites.one]\ncolumns = ["y"]\n', "", BadData, "columns of one contain the target"),
        ('labelled_at = "who"\n' + SITES, "three", BadData, "contains three. It can name a site"),
        ('labelled_at = "who"\n' + SITES, "one", BadData, "labelled at two"),
    ],
)
def test_a_wrong_views_file_is_reported(tmp_path, text, who, error, says):
    with pytest.raises(error, match=says):
        partitioned(read_views(views_of(tmp_path, text, lambda i: who)), 10, None, seed=0)


def test_sites_without_shared_rows_are_reported(tmp_path):
    views = read_views(views_of(tmp_path, f'labelled_at = "who"\n{SITES}', lambda i: ("one", "two")[i % 2]))
    with pytest.raises(BadData, match="0 shared rows and 0 test rows"):
        partitioned(views, 10, None, seed=0)


@pytest.mark.parametrize("command", [["run", "--objective", "agreement"], ["compare"]], ids=lambda words: words[0])
def test_the_other_commands_take_a_views_file_too(tmp_path, command):
    views = views_of(tmp_path, SITES)
    result = CliRunner().invoke(app, [*command, "--views", str(views), "--labelled", "10", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert told.get("rounds") or told["closed_form"]


DATED = ["--labelled", "20", "--dates", "when=%Y-%m-%d", "--objective", "agreement", "--tolerance", "1e-6", "--json"]


def test_dates_become_features(tmp_path):
    # y is the year, so a site that reads the date predicts it.
    rng = np.random.default_rng(0)
    dates = zip(rng.integers(2000, 2020, 90), rng.integers(1, 13, 90), rng.integers(1, 29, 90), strict=True)
    lines = [f"{year}-{month:02d}-{day:02d},{rng.normal():.3f},{year}" for year, month, day in dates]
    (tmp_path / "t.csv").write_text("\n".join(["when,a,y", *lines]) + "\n")
    named = ["--data", tmp_path / "t.csv", "--target", "y", "--sites", "2"]
    result = CliRunner().invoke(app, ["run", *map(str, named), *DATED])
    assert result.exit_code == 0, result.output
    assert min(json.loads(result.stdout.splitlines()[-1])["rmse_sites_alone"]) < 3.5  # of years; their spread is 5.8
    wrong = CliRunner().invoke(app, ["run", *map(str, named), "--dates", "wen=%Y-%m-%d"])
    assert "no column 'wen' (to be read as dates)" in str(wrong.exception)
