"""Whatever container holds a table or a target, every estimator reads the same values, or refuses
it in the same words.
"""

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_allclose
from scipy import sparse
from sklearn.base import is_classifier
from test_scikit_learn_checks import CLASSES, rows

from coreg_core.estimators.tables import missing_in, read_table

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore:views is not given")
EACH = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def objects(missing):
    def container(X):
        out = X.astype(object)
        out[np.isnan(X)] = missing
        return out

    return container


TABLES = {
    "list": lambda X: X.tolist(),
    "objects with pandas.NA": objects(pd.NA),
    "pandas": lambda X: pd.DataFrame(X, columns=list("abcd")[: X.shape[1]]),
    "pandas, nullable": lambda X: pd.DataFrame(X, columns=list("abcd")[: X.shape[1]]).astype(
        "Float64"
    ),
    "polars": lambda X: pl.DataFrame(X, schema=list("abcd")[: X.shape[1]]).fill_nan(None),
}
VECTORS = {
    "list": lambda y: y.tolist(),
    "objects with pandas.NA": objects(pd.NA),
    "pandas": pd.Series,
    "pandas, nullable": lambda y: pd.Series(y).astype("Float64"),
    "polars": lambda y: pl.Series(y).fill_nan(None),
}


@EACH
def test_every_container_holds_the_same_numbers(cls):
    X, _, missing = rows(cls)
    expected = cls().fit(X, missing).predict(X)
    for name, container in TABLES.items():
        predictions = cls().fit(container(X), missing).predict(container(X))
        assert_allclose(predictions, expected, rtol=1e-9, atol=1e-12, err_msg=name)
    for name, container in VECTORS.items():
        model = cls().fit(X, container(missing))
        assert_allclose(model.predict(X), expected, err_msg=name)
        assert model.score(X, container(missing)) == pytest.approx(model.score(X, missing)), name


@EACH
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_missing_or_infinite_cell_is_named_in_every_container(cls, value):
    X, _, missing = rows(cls)
    X[4, 1] = value
    for name, container in TABLES.items():
        with pytest.raises(ValueError, match=r"row 5.*column ('?b'?|2)") as error:
            cls().fit(container(X), missing)
        words = ("infinity", "must be finite")
        if np.isnan(value):
            words = ("NaN", "SimpleImputer")
        for word in words:
            assert word in str(error.value), name


@EACH
def test_what_is_no_number_is_refused(cls):
    X, _, missing = rows(cls)
    days = np.datetime64("2026-01-01", "us") + 86_400_000_000 * np.arange(60)
    for odd in (["x"] * 60, days, [{"a": 1}] * 60, [[1.0, 2.0]] * 60):
        for frames in (pd, pl):
            with pytest.raises(ValueError, match=r"X: not numeric: 'b'"):
                cls().fit(frames.DataFrame({"a": X[:, 0], "b": odd, "c": X[:, 2]}), missing)
    with pytest.raises((TypeError, ValueError), match=r"dates|datetime"):
        cls().fit(np.column_stack([days, days]), missing)
    with pytest.raises(ValueError, match="a lazy frame"):
        cls().fit(pl.LazyFrame({"a": X[:, 0]}), missing)
    with pytest.raises(ValueError, match="Complex data not supported"):
        cls().fit(X + 1j, missing)
    with pytest.raises(TypeError, match="Sparse data was passed"):
        cls().fit(sparse.csr_array(X), missing)
    masked = np.ma.MaskedArray(
        X, X > 1.0
    )  # the value under the mask is a number that must not be read
    for given in (
        (masked, missing),
        (list(masked), missing),
        (X, np.ma.MaskedArray(missing, missing > 0.0)),
    ):
        with pytest.raises(ValueError, match=r"a masked array.*filled\(np.nan\)"):
            cls().fit(*given)
    if not is_classifier(cls()):
        for y in (days, pd.Series(days), pl.Series(days)):
            with pytest.raises(ValueError, match="y: dates or durations"):
                cls().fit(X, y)


def test_texts_that_name_classes_keep_their_gaps():
    X, y, _ = rows(next(cls for cls in CLASSES if is_classifier(cls())))
    words = np.where(y > 0.5, "yes", "no").astype(object)
    words[30:] = None
    with_nan = [word if word is not None else np.nan for word in words]
    for cls in (cls for cls in CLASSES if is_classifier(cls())):
        expected = cls().fit(X, words).predict(X)
        for given in (
            words.tolist(),
            with_nan,
            pd.Series(words, dtype="string"),
            pl.Series(words.tolist()),
        ):
            assert cls().fit(X, given).predict(X).tolist() == expected.tolist()


def test_values_that_are_missing():
    array = np.array(
        [None, pd.NA, float("nan"), pd.NaT, np.datetime64("NaT"), 0, "", False], dtype=object
    )
    assert missing_in(array).tolist() == [True] * 5 + [False] * 3
    assert np.isnan(read_table([[1.0, None]], gaps=True)).tolist() == [[False, True]]
