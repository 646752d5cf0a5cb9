"""A store that is open, in a folder of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.store.runs import RunStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    opened = RunStore(tmp_path / "runs.sqlite")
    yield opened
    opened.close()
