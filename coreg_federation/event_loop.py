"""Call what runs an event loop of its own, also where one runs already: in a notebook."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def outside(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call a function that runs an event loop; in a thread where one is running already, as in a
    notebook.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(*arguments, **named)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *arguments, **named).result()
