"""Columns to numbers: the rules by value, scikit-learn as the oracle, and JSON that gives the same
bits.
"""

import dataclasses
import re
import warnings

import numpy as np
import pytest
from agent_files import fitted, prepared, table, write
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from coreg_core.errors import BadData, UsageError


def lines(rows, header="id,a,c,y"):
    return "\n".join([header, *rows, ""])


NUMBER = st.floats(-1e6, 1e6).filter(lambda x: x == 0.0 or abs(x) > 1e-100).map(repr)
LEVEL = st.sampled_from(["x", "z", "é", "two words"])
ROW = st.tuples(st.one_of(NUMBER, st.just("")), st.one_of(LEVEL, st.just("NA")))
ROWS = st.tuples(
    st.tuples(NUMBER, LEVEL), st.lists(ROW, max_size=8), st.lists(ROW, min_size=1, max_size=8)
).map(
    lambda parts: [
        *(
            f"l{i},{a},{c},{i}" for i, (a, c) in enumerate([parts[0], *parts[1]])
        ),  # the first has a value in both
        *(f"u{i},{a},{c}," for i, (a, c) in enumerate(parts[2])),
    ]
)


@given(ROWS)
def test_as_a_column_transformer_of_scikit_learn(tmp_path_factory, rows):
    ours, found = fitted(tmp_path_factory.mktemp("t"), lines(rows), scale=True)

    def array(part):
        text = [text or "missing" for text in part.texts("c")]
        return np.array([*zip(part.numbers("a"), text, strict=True)], dtype=object)

    L = array(found.labelled)
    U = array(found.unlabelled)
    seen = sorted({c for c in [*L[:, 1], *U[:, 1]] if c != "missing"})
    theirs = ColumnTransformer(
        [
            ("a", make_pipeline(SimpleImputer(), StandardScaler()), [0]),
            (
                "c",
                OneHotEncoder(categories=[seen], handle_unknown="ignore", sparse_output=False),
                [1],
            ),
        ]
    ).fit(L)  # the mean and the scale: of labelled rows alone
    missing = StandardScaler().fit(np.isnan(L[:, :1].astype(float)))
    own = [j for j, name in enumerate(ours.feature_names) if not name.endswith(" is missing")]
    spread = np.ptp(SimpleImputer().fit_transform(L[:, :1].astype(float)))
    if 0 < spread < 1e-6:
        return  # scikit-learn calls such a column constant or not by its own rounding
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", UserWarning
        )  # "found unknown categories": that is what is tested
        for part, plain in ((found.labelled, L), (found.unlabelled, U)):
            # Values up to 1e6 against a scale that may be far smaller: the mean's rounding is
            # magnified by it.
            atol = 1e-15 * 1e6 / ours.columns[0].scale + 1e-13
            X = ours.transform(part)
            assert_allclose(X[:, own], theirs.transform(plain), rtol=1e-12, atol=atol)
            if "a is missing" in ours.feature_names:
                expected = missing.transform(np.isnan(plain[:, :1].astype(float)))[:, 0]
                assert_allclose(
                    X[:, ours.feature_names.index("a is missing")], expected, rtol=1e-12, atol=1e-13
                )


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["20240131", "19991231", "20000229", "20240101"], r"looks like dates.*a=%Y%m%d"),
        (["01067", "80331", "10115", "20095"], r"codes, such as '01067'.*--categorical a"),
        (["20241401", "19991231", "20000229", "20240131"], None),
        (["1067", "0.5", "10115", "20095"], None),
    ],
)
def test_numbers_that_look_like_dates_or_codes_are_told_with_the_option(tmp_path, cells, words):
    rows = lines([f"{i},{cell},x,{i if i < 3 else ''}" for i, cell in enumerate(cells)])
    notes = " ".join(fitted(tmp_path, rows)[0].notes)
    if words is None:
        assert "looks like" not in notes
    else:
        assert re.search(words, notes), notes


@pytest.mark.parametrize("power", [-30, -12, 12])
def test_a_column_in_another_unit_has_the_same_features(tmp_path, power):
    values = [0.7, -1.2, 0.4, 2.2]
    rows = [f"{i},{value}{{}},x,{i if i < 3 else ''}" for i, value in enumerate(values)]
    features = [
        preprocessing.transform(found.labelled)[:, 0]
        for end in ("", f"e{power}")
        for preprocessing, found in [fitted(tmp_path, lines(row.format(end) for row in rows))]
    ]
    assert_allclose(*features, rtol=1e-12)
    assert np.ptp(features[0]) > 1.0


@pytest.mark.parametrize(("cell", "kind"), [("3e-160", "vanish"), ("3e160", "overflows")])
@pytest.mark.parametrize("place", ["a", "y"])
def test_what_float64_holds_no_squares_of_is_refused_with_its_cell(tmp_path, cell, kind, place):
    of = {"a": (cell, "1"), "y": ("1", cell)}[place]
    rows = lines([f"0,{of[0]},x,{of[1]}", "1,0,z,0", "2,0,x,"])
    with pytest.raises(BadData, match=rf"line 2, column '{place}': .*{kind}"):
        prepared(write(tmp_path, rows))


def test_mean_and_scale_are_of_labelled_rows_and_levels_of_all(tmp_path):
    preprocessing, few = fitted(tmp_path, lines(["1,1,x,1", "2,3,x,2", "3,100,w,"]))
    a, c = preprocessing.columns
    assert a.mean == 2.0
    assert a.scale == 1.0
    assert a.fill == 2.0
    assert c.levels == ("w", "x")
    assert preprocessing.transform(few.unlabelled).tolist() == [[98.0, 1.0, 0.0]]
    assert preprocessing.transform(few.labelled).tolist() == [[-1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("value", ["0.1", "7", "-1e-9", "1e140"])
def test_a_constant_column_is_zeros_to_the_last_bit_and_noted(tmp_path, value, scale):
    rows = [f"{i},{value},x,{i}" for i in range(3)] + [f"9,{value},x,"]
    preprocessing, found = fitted(tmp_path, lines(rows), scale=scale)
    expected = float(value)
    if scale:
        expected = 0.0
    assert preprocessing.transform(found.labelled)[:, 0].tolist() == [expected] * 3
    assert preprocessing.transform(found.unlabelled)[:, 0].tolist() == [expected]
    assert preprocessing.notes == ("constant among the labelled rows, so without effect: 'a'",)


@pytest.mark.parametrize(
    ("cells", "kind", "encoded", "levels"),
    [
        (
            ["TRUE", "no", "Yes", "false"],
            "boolean",
            [1.0, 0.0, 1.0],
            ("Yes", "false", "no", "true"),
        ),
        (["0", "1", "1", "0"], "numeric", [0.0, 1.0, 1.0], ("0", "1")),
        (["+1", ".5", "1e1", "-0"], "numeric", [1.0, 0.5, 10.0], ("+1", "0", "0.5", "1e1")),
    ],
)
def test_a_column_is_boolean_numeric_or_what_the_operator_named(
    tmp_path, cells, kind, encoded, levels
):
    rows = lines([f"{i},{cell},x,{i if i < 3 else ''}" for i, cell in enumerate(cells)])
    preprocessing, found = fitted(tmp_path, rows, scale=False)
    assert preprocessing.columns[0].kind == kind
    assert preprocessing.transform(found.labelled)[:, 0].tolist() == encoded
    named = fitted(tmp_path, rows, categorical=["a"])[0].columns[0]
    assert named.kind == "text"
    assert named.levels == levels
    with pytest.raises(UsageError, match="no such feature"):
        fitted(tmp_path, rows, categorical=["b"])


def test_a_text_column_has_at_most_200_levels(tmp_path):
    many = "id,c,y\n" + "".join(f"{i},level {i},{i if i < 9 else ''}\n" for i in range(201))
    with pytest.raises(BadData, match=r"column 'c': 201 different texts in 201 rows.* Group them"):
        fitted(tmp_path, many)
    with pytest.raises(BadData, match=r"(?s)^(?!.*different texts).*Did you mean 'ID' for 'id'"):
        fitted(tmp_path, many.replace("id,c", "c,ID"))
    many = many.replace("level 200", "level 199")
    with pytest.raises(
        BadData, match=r"200 different texts in 201 rows.* If they are categories: --categorical c"
    ):
        fitted(tmp_path, many)
    wide = fitted(tmp_path, many, categorical=["c"])[0]
    assert wide.columns[0].kind == "text"
    assert wide.summary == "c (200 levels)"
    assert "column 'c' makes 200 of 200 features" in wide.notes[0]


REFUSED = {
    "a typo in a labelled row": (
        ["1,1,x,1", "2,l,x,2", "3,2,x,"],
        r"line 3, column 'a': 'l' is not a finite",
    ),
    "a typo in a shared row": (
        ["1,1,x,1", "2,3,x,2", "3,2..,x,"],
        r"line 4, column 'a': '2\.\.' is not a finite",
    ),
    "true among numbers": (
        ["1,true,x,1", "2,1,x,2", "3,1,x,"],
        r"line 2, column 'a': 'true' is not a finite",
    ),
    "a square that overflows": (
        ["1,1,x,1", "2,-1e200,x,2", "3,1,x,"],
        r"line 3, column 'a': '-1e200' is outside",
    ),
    "no number among the labelled": (
        ["1,,x,1", "2,NA,x,2", "3,1,x,"],
        r"'a': no labelled row .* --drop a",
    ),
    "no text among the labelled": (
        ["1,1,,1", "2,2,NA,2", "3,1,x,"],
        r"'c': no labelled row .* --drop c",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_faulty_cell_is_refused_by_file_line_and_column(tmp_path, why):
    rows, words = REFUSED[why]
    with pytest.raises(BadData, match=words) as error:
        fitted(tmp_path, lines(rows))
    assert "t.csv" in str(error.value)


def test_texts_that_training_never_saw_are_encoded_as_nothing_and_counted(tmp_path):
    preprocessing, _ = fitted(tmp_path, lines(["1,1,x,1", "2,3,z,2", "3,,x,"]))
    new = table(tmp_path, "c,extra,a\nnever,0,1\nx,0,3\nnor,0,\nNA,0,1\n")
    assert preprocessing.columns[0].indicator
    low = [-1.0, 0.0, 0.0, 0.0]
    high = [1.0, 0.0, 1.0, 0.0]
    absent = [0.0, 1.0, 0.0, 0.0]
    assert preprocessing.transform(new).tolist() == [low, high, absent, low]
    unseen, absent = preprocessing.moved(new)  # and a has an indicator of its own, so no word of it
    assert "column 'c': cells with a text that training never had: 2 ('never' first)" in unseen
    assert "column 'c': missing cells: 1," in absent
    assert preprocessing.moved(table(tmp_path, "a,c\n,x\n")) == []


def test_a_table_without_a_column_of_the_model_is_refused(tmp_path):
    preprocessing, _ = fitted(tmp_path, lines(["1,1,x,1", "2,3,z,2", "3,2,x,"]))
    less = table(tmp_path, "A,d\n1,2\n")
    for refuse in (preprocessing.transform, preprocessing.moved):
        with pytest.raises(BadData, match=r"no column 'a', 'c'.*Did you mean 'A' for 'a'\?"):
            refuse(less)
    with pytest.raises(dataclasses.FrozenInstanceError):
        preprocessing.columns[0].mean = 3.0
