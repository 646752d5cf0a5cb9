"""Imported before every estimator: without scikit-learn the error names the extra, instead of the first failing import."""

from coreg_core.errors import require_scikit_learn

require_scikit_learn("coreg_core.estimators")
