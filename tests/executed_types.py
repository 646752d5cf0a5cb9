"""The type checker that jaxtyping's import hook puts on every function of `coreg_core` (see conftest.py)."""

from collections.abc import Callable
from typing import Any, Self

from beartype import beartype


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """`beartype`, which knows ``Self`` only where it decorates the class; the hook decorates methods one by one."""
    hints = getattr(function, "__annotations__", {})
    if Self in hints.values():
        function.__annotations__ = {name: Any if hint is Self else hint for name, hint in hints.items()}
    return beartype(function)
