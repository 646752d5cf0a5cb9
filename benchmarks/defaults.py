"""R² of regressors with their defaults on scikit-learn's diabetes: 60 labels, 200 unlabelled rows,
182 test rows.

    python benchmarks/defaults.py [--draws 5]

docs/tutorials/from-python.md and CHANGELOG.md quote it.
"""

import argparse
import inspect

import numpy as np
from sklearn.base import is_regressor
from sklearn.datasets import load_diabetes
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV

import coreg_core.estimators as estimators
from benchmarks.papers import methods

VIEWS = [slice(0, 5), slice(5, 10)]


def models():
    """Each regressor by its name, and the paper's setting of CoRLSR."""
    out = {"RidgeCV": RidgeCV(np.logspace(-3, 3, 13))}
    for name in (*estimators.__all__, *methods.__all__):
        cls = getattr(estimators, name, None) or getattr(methods, name)
        known = inspect.signature(cls).parameters
        if name in ("LabelledFolds", "OCA") or not is_regressor(cls()):  # OCA takes lists of tables
            continue
        given = {"views": VIEWS, "random_state": 0}
        out[name] = cls(**{key: value for key, value in given.items() if key in known})
    out["AdditiveRegressor, linear"] = estimators.AdditiveRegressor(views=VIEWS, kernel="linear")
    couplings = {"coupling": (0.0, *np.logspace(-5.0, 0.0, 11))}
    chosen = {"cv": estimators.LabelledFolds(5), "scoring": "neg_mean_squared_error"}
    out["CoRLSR, coupling chosen"] = GridSearchCV(
        estimators.CoRLSR(views=VIEWS), couplings, **chosen
    )
    return out | {"CoRLSR, preset paper": estimators.CoRLSR(views=VIEWS, preset="paper")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=5)
    draws = parser.parse_args().draws
    X, y = load_diabetes(return_X_y=True)
    scores = {name: [] for name in models()}
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(y))
        fit = order[:260]
        test = order[260:]
        targets = y.copy()
        targets[order[60:260]] = np.nan
        for name, model in models().items():
            rows = order[:60] if name == "RidgeCV" else fit
            predicted = model.fit(X[rows], targets[rows]).predict(X[test])
            scores[name].append(r2_score(y[test], predicted))
    for name, found in sorted(scores.items(), key=lambda each: -np.mean(each[1])):
        print(f"{name:28} {np.mean(found):+.2f}")


if __name__ == "__main__":
    main()
