"""The public interface of coreg, used as ``import coreg_federation as coreg``.

`CoRLSR`, `AdditiveRegressor` and the classifiers are estimators with scikit-learn's conventions
(extra ``estimators``). `join` makes a `Site` of a federation, which trains and scores; `Federation`
is the coordinator's side. `LabelledFolds` are their folds for scikit-learn's searches, `load_model`
reads the model file of a site, `simulate` runs a `Problem` under the plan of `plan_for` in one
process. Each is imported when it is used first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coreg_core.estimators import *  # noqa: F403
    from coreg_federation.federation import Federation
    from coreg_federation.model import Model, load_model
    from coreg_federation.site import Site, join
    from coreg_sim.problems import Problem
    from coreg_sim.simulate import plan_for, simulate

# Listed here, since importing the estimators takes a second and needs scikit-learn.
ESTIMATORS = (
    "AdditiveClassifier", "AdditiveRegressor", "CoRLSR", "CoRLSRClassifier", "LabelledFolds",
)  # fmt: skip
__all__ = [
    *ESTIMATORS, "Federation", "Model", "Problem", "Site", "__version__", "join", "load_model",
    "plan_for", "simulate",
]  # fmt: skip
_PLACES = {
    **dict.fromkeys(ESTIMATORS, "coreg_core.estimators"),
    "Federation": "coreg_federation.federation",
    "Model": "coreg_federation.model",
    "Site": "coreg_federation.site",
    "join": "coreg_federation.site",
    "load_model": "coreg_federation.model",
    "Problem": "coreg_sim.problems",
    "plan_for": "coreg_sim.simulate",
    "simulate": "coreg_sim.simulate",
}
__version__: str


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from coreg_wire.transport.service import release

        return release()
    if name not in _PLACES:
        raise AttributeError(f"module 'coreg_federation' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
