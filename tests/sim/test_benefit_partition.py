"""The tables of the benefit study: what is drawn is what a regime says, and an own table is read as an agent reads it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from benefit_table import table
from numpy.testing import assert_allclose, assert_array_equal
from stand_in import stand_in

from coreg_core.errors import BadData, UsageError
from coreg_sim.benefit.own import OwnTable
from coreg_sim.benefit.partition import LEAST_TEST, REGIMES, fits, least_rows, partition, table_of
from coreg_sim.benefit.study import CHOSEN_ON, JUDGED_ON, study, table_named
from coreg_sim.papers.pool import NumericDataSet, Pool

# --- dealing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("regime", [r for r in REGIMES.values() if sum(r.labels) < 600], ids=lambda r: r.name)
def test_a_regime_deals_what_it_says(regime):
    made = table()
    drawn = partition(made, regime, (1, 2))
    assert (drawn is None) == (regime.sizes and regime.shared > 405), "the number of shared rows is what it is about"
    if drawn is None:
        assert least_rows(regime) == -(-regime.shared * 100 // 45)
        return
    if regime.yes_no:
        made = replace(made, y=(made.y > np.median(made.y)).astype(float))
    assert [len(y) for y in drawn.labels] == list(regime.labels)
    assert len(drawn.test) >= LEAST_TEST
    if regime.known == 1.0:
        assert len(drawn.shared) == min(regime.shared, 405)
    rows = [drawn.shared, drawn.test, *(drawn.labelled[:1] if regime.same_rows else drawn.labelled)]
    together = np.concatenate(rows)
    appended = regime.twist == "synthetic" or regime.mislinked > 0
    assert all(len(X) == len(made.y) + (len(drawn.shared) if appended else 0) for X in drawn.columns)
    assert (drawn.shared.min() >= len(made.y)) == appended
    assert len(np.unique(together)) == len(together), "nobody trains on a test row, and no label is shared by chance"
    if regime.same_rows:
        for other in drawn.labelled[1:]:
            assert_array_equal(other, drawn.labelled[0])
    # Each site's labels are a factor times the table's, and an offset: 1 and 0 but where a regime says otherwise.
    factors = [float(np.ptp(y) / np.ptp(made.y[drawn.test])) for y in drawn.y_test]
    offsets = [float(y.mean() - f * made.y[drawn.test].mean()) for y, f in zip(drawn.y_test, factors, strict=True)]
    assert (np.ptp(factors) > 0.01) == regime.units
    if regime.flipped:
        assert_allclose(drawn.y_test[-1], -made.y[drawn.test])
    elif not regime.units:
        assert (np.abs(offsets).max() > 0.01) == (regime.offset > 0)
        assert_allclose(drawn.y_test, made.y[drawn.test] + np.array(offsets)[:, None], atol=1e-12)
    shuffled = regime.twist == "shuffled"
    for v, (own, y) in enumerate(zip(drawn.labelled, drawn.labels, strict=True)):
        assert drawn.honest[v] == (not shuffled or v < 2)
        if regime.units or regime.flipped or regime.offset:
            continue
        assert_array_equal(np.sort(y), np.sort(made.y[own]))
        assert np.array_equal(y, made.y[own]) == drawn.honest[v]
    # Which attributes a site has, by the first row's values.
    firsts = [float(a[0, 0]) for a in made.attributes]
    have = [{firsts.index(x) for x in X[0] if x in firsts} for X in drawn.columns]
    assert all(X.shape[1] - len(each) == regime.noise for X, each in zip(drawn.columns, have, strict=True))
    assert set.union(*have) == set(range(9))
    core = set.intersection(*have)
    assert len(core) == (3 if regime.columns == "core" else 0)
    assert sum(len(each - core) for each in have) == 9 - len(core)
    if regime.columns == "adjacent":
        assert [sorted(each) for each in have] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    again, other = partition(table(), regime, (1, 2)), partition(table(), regime, (1, 3))
    assert_array_equal(again.test, drawn.test)
    assert not np.array_equal(other.test, drawn.test)


def test_biased_rows_lean_to_an_end_of_one_column():
    made = table(4000)
    leans = []
    for seed in range(5):
        drawn = partition(made, REGIMES["biased50"], (seed,))
        for X, rows in zip(drawn.columns, drawn.labelled, strict=True):
            leans.append(np.abs(X[rows].mean(axis=0) - X.mean(axis=0)).max())
    # Odds of e² from one end to the other move a normal column's mean by 0.5; chance moves the largest of three by 0.14.
    assert np.mean(leans) > 0.35


def test_rare_events_are_the_largest_targets_also_of_a_target_that_ends_in_equal_values():
    made = table(4000)
    drawn = partition(made, REGIMES["rare200"], (1,))
    assert 0.03 < np.mean(np.concatenate(drawn.labels)) < 0.07
    assert set(np.concatenate(drawn.labels)) == {0.0, 1.0}
    capped = replace(made, y=np.minimum(made.y, np.quantile(made.y, 0.9)))
    assert 0.05 < np.mean(np.concatenate(partition(capped, REGIMES["rare200"], (1,)).labels)) < 0.15


def test_mislinked_rows_are_rows_of_other_individuals():
    made = table(900)
    drawn, owners = partition(made, REGIMES["mislinked30"], (7,)), []
    for X in drawn.columns:
        row = {tuple(values): i for i, values in enumerate(X[: len(made.y)])}
        owners.append([row[tuple(values)] for values in X[drawn.shared]])
        assert len(set(owners[-1])) == len(drawn.shared), "rows change places"
    apart = np.mean(np.array(owners[0]) != np.array(owners[1]))
    assert 0.3 < apart < 0.6, "two sites agree on a row where neither moved it: 0.7² of all"


def test_shared_rows_that_lean_lean_along_a_column():
    made = table(4000)
    drawn = partition(made, REGIMES["leaning50"], (5,))
    column = made.attributes[0][:, 0]
    assert abs(column[drawn.shared].mean() - column[drawn.test].mean()) > 0.35 * column.std()


def test_a_table_too_small_is_left_out_of_a_regime():
    assert partition(table(900), REGIMES["n200"], (0,)) is None  # 405 shared and 600 labelled
    assert partition(table(900, attributes=6), REGIMES["M8"], (0,)) is None
    nothing = np.zeros((900, 4))  # columns that never vary tell nothing
    flat = NumericDataSet("flat", nothing, np.arange(900.0), tuple("abcd"), tuple((j,) for j in range(4)), "regression")
    assert table_of(flat).attributes == ()
    assert all(partition(table_of(flat), regime, (0,)) is None for regime in REGIMES.values())
    assert partition(table(900), REGIMES["n50"], (0,), most_rows=200) is None
    assert len(partition(table(900), REGIMES["n10"], (0,), most_rows=200).test) == 200 - 90 - 30
    for regime in (each for each in REGIMES.values() if each.known == 1.0):  # chance decides which rows all know
        least = least_rows(regime)
        assert partition(table(least, attributes=9), regime, (0,)) is not None
        assert partition(table(least - 1, attributes=9), regime, (0,)) is None


def test_other_targets_are_no_columns(tmp_path):
    """sarcos_test's by what is known, another set's by its manifest: a column of texts that is left out needs no number."""
    folder = stand_in(tmp_path / "data", ["sarcos_test", "mg"], rows=200)
    before = {name: len(table_named(folder, name).attributes) for name in ("sarcos_test", "mg")}
    assert before["sarcos_test"] == len(table_of(Pool(folder).load("sarcos_test")).attributes) - 2
    path = folder / "mg.csv"
    texts = [f"{line},{'note' if i == 0 else 'words'}" for i, line in enumerate(path.read_text().splitlines())]
    path.write_text("\n".join(texts) + "\n")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["datasets"][1]["drop"] = ["x1", "note"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert len(table_of(Pool(folder).load("mg")).attributes) == before["mg"] - 1
    with pytest.raises(UsageError, match="no column z"):
        table_of(Pool(folder).load("mg"), ("z",))


def own_table(folder, **changes):
    """Sixty rows as a spreadsheet of many countries writes them: semicolons, decimal commas, empty cells, dates, names."""
    lines = [f"p{i};2024-01-{i % 28 + 1:02};{i % 7},5;{'' if i == 3 else i % 5};{i},25;{i + 7}" for i in range(60)]
    path = folder / "own.csv"
    path.write_text("\n".join(["who;when;x;z;y;number", *lines]) + "\n")
    return OwnTable(**{"path": str(path), "target": "y", "drop": ("who",), "dates": ("when",), **changes})


def test_an_own_table_is_read_as_an_agent_reads_it(tmp_path):
    table, warnings, leaks = own_table(tmp_path).read()
    by_width = sorted(block.shape[1] for block in table.attributes)
    assert by_width == [1, 1, 1, 2], "x, number, the day; z and whether it is empty"
    assert_allclose(np.corrcoef(table.y, np.arange(60))[0, 1], 1.0, atol=1e-3)
    assert warnings[0] == (
        "60 rows with a target; features from the columns when (days), x, z, number; with an indicator of missing values: z"
    )
    assert [sentence for sentence in warnings[1:] if "number" in sentence] == [
        "column 'number' has a different whole number in every row. Add --drop number if it is an id.",
    ]
    assert [sentence for sentence in leaks if "number" in sentence] == [
        "column 'number' has nearly the order of the target (rank correlation +1.00). Is it known only after the target, or "
        "computed from it? Then add --drop number.",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "yy"}, "no column 'yy' .*Did you mean 'y'"),
        ({"target": "when", "dates": ()}, "column 'when'"),
        ({"target": "who"}, "'who' is both the target and a column to drop"),
        ({"drop": ("nobody",)}, "no column 'nobody'"),
        ({"dates": ("x",)}, "column 'x'"),
        ({"drop": ("who", "when", "x", "z", "number"), "dates": ()}, "0 features"),
    ],
)
def test_an_own_table_that_cannot_be_used_is_explained(tmp_path, changes, words):
    with pytest.raises((BadData, UsageError), match=words):
        own_table(tmp_path, **changes).read()


def test_another_file_or_another_column_is_another_job(tmp_path):
    def identity(table):
        return study(table, None, "n10", draws=1).jobs()[0].arguments

    first = identity(own_table(tmp_path))
    assert identity(own_table(tmp_path)) == first
    assert json.loads(json.dumps(first)) == first, "or a resumed study would compute it again"
    assert identity(own_table(tmp_path, drop=("who", "x"))) != first
    with (tmp_path / "own.csv").open("a", encoding="utf-8") as file:
        file.write("q;2024-01-01;1,5;1;1,0;99\n")
    assert identity(OwnTable(str(tmp_path / "own.csv"), "y", ("who",), ("when",))) != first


def test_the_two_groups_share_no_set():
    assert not set(CHOSEN_ON) & set(JUDGED_ON)


@pytest.mark.parametrize("name", ["n10", "n200", "m500", "M8", "biased50", "same50", "core20"])
def test_a_table_fits_a_regime_if_it_can_be_partitioned(name):
    made, regime = table(), REGIMES[name]
    rows = least_rows(regime)
    for most in (rows - 1, rows):
        drawn = partition(made, regime, (1, 2), most)
        assert fits(made, regime, most) == (drawn is not None) == (rows <= min(most, len(made.y)))
