"""Sweeps: resumed, the same over Ray, with honest intervals; tables parted by a views.toml; the plot."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from coreg_core.errors import BadData, StorageError, UsageError
from coreg_sim.cli.app import app
from coreg_sim.federation.views_file import partitioned, read_views
from coreg_sim.sweep import interval

SMALL = ("--couplings", "0,0.01,1", "--sites", "2,3", "--splits", "8:20", "--seeds", "3", "--form", "semi-parametric")


def sweep(*arguments):
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


def test_a_sweep_is_a_table_with_intervals_a_plot_and_a_record(tmp_path):
    result = sweep(*SMALL, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    told = json.loads((tmp_path / "sweep.json").read_text())
    [table] = told["report"]["tables"]
    assert [row[:3] for row in table["rows"]] == [[m, "8:20", lam] for m in (2, 3) for lam in (0.0, 0.01, 1.0)]
    assert "6 of 6 runs converged" in result.output
    assert all(row[3].startswith("+0.0") for row in table["rows"] if row[2] == 0.0), "uncoupled is alone"
    lines = [json.loads(line) for line in (tmp_path / "sweep.jsonl").read_text().splitlines()]
    changes = [
        np.mean(np.divide(d["result"]["columns"][2]["rmse_sites"], d["result"]["rmse_sites_alone"])) - 1
        for d in lines[:3]
    ]
    low, high = stats.t.interval(0.95, 2, np.mean(changes), stats.sem(changes))
    assert table["rows"][2][3] == f"{100 * np.mean(changes):+.1f} %"
    assert table["rows"][2][4] == f"± {50 * (high - low):.1f}"
    ET.fromstring((tmp_path / "sweep.svg").read_text())


def test_a_killed_sweep_goes_on_and_another_table_is_another_sweep(tmp_path):
    table = tmp_path / "t.csv"
    write_table(table, 0)
    named = ["--data", table, "--target", "y", "--drop", "who", "--out", tmp_path]
    options = [*named, *SMALL[:4], "--splits", "8:20", "--seeds", "2"]
    first = sweep(*options, "--json")
    assert first.exit_code == 0, first.output
    lines = (tmp_path / "sweep.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "sweep.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:20])
    again = sweep(*options)
    assert "4 draws, 3 of 4 jobs from an earlier run" in again.output
    assert json.loads((tmp_path / "sweep.json").read_text()) == json.loads(first.stdout)
    write_table(table, 1)
    assert "earlier run" not in sweep(*options).output


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--couplings", "1,x"], "commas"),
        (["--couplings", "1,1"], "given once"),
        (["--couplings", "-1"], "at least 0"),
        (["--couplings", "inf"], "finite"),
        (["--couplings", ",".join(map(str, range(65)))], "At most 64"),
        (["--sites", "0"], "at least 1"),
        (["--splits", "0:5"], "LABELLED:UNLABELLED"),
        (["--splits", "many"], "LABELLED:UNLABELLED"),
        (["--on", "moon"], "'process', 'ray'"),
        (["--address", "auto"], "--on ray"),
        (["--data", "t.csv"], "--target"),
        (["--views", "v.toml", "--drop", "id"], "Leave out the options of a table"),
        (["--views", "v.toml"], "no such file"),
        (["--form", "round"], "semi-parametric"),
    ],
)
def test_wrong_options_of_a_sweep_are_usage_errors(tmp_path, options, says):
    result = sweep(*options, "--out", tmp_path)
    assert getattr(result.exception, "exit_code", result.exit_code) == UsageError.exit_code, result.output
    assert says in f"{result.exception} {result.output}"


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert isinstance(sweep(*SMALL, "--out", tmp_path / "file" / "out").exception, StorageError)
    assert isinstance(sweep("--data", tmp_path / "none.csv", "--target", "y").exception, BadData)


def test_one_draw_has_no_interval():
    assert interval(np.array([0.5])) == (0.5, None)


# --- own tables ---------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("command", ["run", "compare"])
def test_the_other_commands_take_a_views_file_too(tmp_path, command):
    views = views_of(tmp_path, SITES)
    result = CliRunner().invoke(app, [command, "--views", str(views), "--labelled", "10", "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout.splitlines()[-1])
    assert told.get("rounds") or told["closed_form"]


def test_dates_become_features_in_run_and_sweep(tmp_path):
    # y is the year, so a site that reads the date predicts it.
    lines = [f"{2000 + i % 20}-03-{1 + i % 28:02d},{i % 7},{2000 + i % 20}" for i in range(90)]
    (tmp_path / "t.csv").write_text("\n".join(["when,a,y", *lines]) + "\n")
    named = ["--data", tmp_path / "t.csv", "--target", "y", "--sites", "2"]
    result = CliRunner().invoke(app, ["run", *map(str, named), "--labelled", "20", "--dates", "when", "--json"])
    assert result.exit_code == 0, result.output
    assert min(json.loads(result.stdout.splitlines()[-1])["rmse_sites_alone"]) < 1.0  # of years; their spread is 5.8
    swept = sweep(*named, "--splits", "20:", "--seeds", "1", "--out", tmp_path, "--dates", "when", "--couplings", "0")
    assert swept.exit_code == 0, swept.output
    wrong = sweep(*named, "--splits", "20:", "--seeds", "1", "--out", tmp_path, "--dates", "wen")
    assert "no column 'wen' (to be read as dates)" in str(wrong.exception)


def test_dates_and_a_yes_no_target_of_a_views_file_and_of_a_sweep(tmp_path):
    lines = [
        f"{2000 + i % 20}-03-{1 + i % 28:02d},{i % 7},{2000 + i % 20},{'yes' if i % 20 > 9 else 'no'}"
        for i in range(90)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["when,a,y,late", *lines]) + "\n")
    sites = '[sites.one]\ncolumns = ["when"]\ndates = ["when"]\n[sites.two]\ncolumns = ["a"]\n'
    (tmp_path / "views.toml").write_text(f'data = "t.csv"\ntarget = "y"\n{sites}')
    parts = partitioned(read_views(tmp_path / "views.toml"), 20, None, 0)
    one = parts.sites["one"]
    assert np.corrcoef(one.X[:, 0], one.y)[0, 1] > 0.99  # the days since some day, and the year
    named = ["--data", tmp_path / "t.csv", "--target", "late", "--positive", "yes", "--drop", "y", "--dates", "when"]
    swept = sweep(*named, "--sites", "2", "--splits", "20:", "--seeds", "1", "--out", tmp_path, "--couplings", "0")
    assert swept.exit_code == 0, swept.output
