"""Imported before every estimator: without scikit-learn there is one sentence, and not whichever import fails first."""

from coreg_core.errors import require_scikit_learn

require_scikit_learn("coreg_core.estimators")
