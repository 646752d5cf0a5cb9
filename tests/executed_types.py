"""The type checker that jaxtyping's import hook puts on every function of `coreg_core` (see
conftest.py).
"""

from collections.abc import Callable
from typing import Any, Self

from beartype import BeartypeConf, beartype

# An int serves where a float is asked for, as PEP 484 says and mypy holds.
_typed = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """`beartype`, which knows ``Self`` only where it decorates the class; the hook decorates
    methods one by one.
    """
    if function.__module__.startswith("coreg_core.estimators") and function.__name__ == "__init__":
        return function  # scikit-learn: a constructor checks nothing, `fit` does
    hints = getattr(function, "__annotations__", {})
    if Self in hints.values():
        function.__annotations__ = {
            name: Any if hint is Self else hint for name, hint in hints.items()
        }
    return _typed(function)
