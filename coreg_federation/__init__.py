"""The public interface of coreg, used as ``import coreg_federation as coreg``.

`CoRLSR`, `AdditiveRegressor` and their classifiers are estimators with scikit-learn's conventions (extra
``estimators``), `LabelledFolds` are their folds for scikit-learn's searches, `load_model` reads the model file of a site,
`simulate` runs a federation in one process. Each is imported when it is used first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coreg_core.estimators import AdditiveClassifier, AdditiveRegressor, CoRLSR, CoRLSRClassifier, LabelledFolds
    from coreg_federation.model import Model, load_model
    from coreg_sim.federation.simulate import simulate

__all__ = [
    "AdditiveClassifier",
    "AdditiveRegressor",
    "CoRLSR",
    "CoRLSRClassifier",
    "LabelledFolds",
    "Model",
    "__version__",
    "load_model",
    "simulate",
]
_PLACES = {
    "AdditiveClassifier": "coreg_core.estimators",
    "AdditiveRegressor": "coreg_core.estimators",
    "CoRLSR": "coreg_core.estimators",
    "CoRLSRClassifier": "coreg_core.estimators",
    "LabelledFolds": "coreg_core.estimators",
    "Model": "coreg_federation.model",
    "load_model": "coreg_federation.model",
    "simulate": "coreg_sim.federation.simulate",
}
DISTRIBUTION = "coreg-federation"
__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from coreg_wire.transport.release import release

        return release()
    if name not in _PLACES:
        raise AttributeError(f"module 'coreg_federation' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
