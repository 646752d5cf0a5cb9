"""Ray: started on this machine and ended, or an existing cluster that is joined and left.

Only processes that were started here are ended here. Every wait has a timeout.
"""

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from coreg_core.errors import Unreachable, UsageError

HEALTH_SECONDS = 30.0  # for a cluster to say that it is up: Ray itself would try for minutes


@dataclass(frozen=True)
class Cluster:
    """A running Ray: the module, the cores of all its nodes, and its place for messages (this machine, or the address)."""

    ray: Any
    cpus: int
    where: str


@contextmanager
def connected(address: str | None = None, cpus: int | None = None, *, instead: str) -> Iterator[Cluster]:
    """A running Ray, for as long as the block lasts.

    Without an address, one is started on this machine with so many cores (None: all). ``auto`` or HOST:PORT joins a cluster; this
    process runs on one of its nodes. ``instead`` is what a user without Ray can do; it ends the errors' messages.

    Raises
    ------
    UsageError
        Ray is not installed, or the address is of a form that is not served.
    Unreachable
        It does not start, or no cluster answers there.
    """
    # Set before Ray is imported, and inherited by what it starts.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of a future change
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
    # Ray reports processes that died on standard output, where a --json run has its rows. The transport reports them.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise UsageError(f"Ray is not installed: pip install 'coreg-federation[sim]', or {instead}.") from None
    with ExitStack() as stack:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            # A folder of its own: no other session is found, and nothing stays behind.
            folder = tempfile.TemporaryDirectory(prefix="coreg-ray-", ignore_cleanup_errors=True)
            options |= {"address": "local", "_temp_dir": stack.enter_context(folder)}
            options |= {"num_cpus": cpus, "include_dashboard": False}
        else:
            _require_health(address, instead)
            options["address"] = address
        try:
            ray.init(**options)
        except Exception as error:  # noqa: BLE001 - it has many ways of not starting, and what to do is always the same
            where = "here" if address is None else f"at {address}"
            raise Unreachable(f"Ray does not start {where} ({error}). {instead[0].upper()}{instead[1:]}.") from None
        stack.callback(ray.shutdown)
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        there = int(resources.get("CPU", 0))
        if there < 1:
            raise Unreachable(f"Ray at {address} has no core for actors. Add a node that has, or {instead}.")
        yield Cluster(ray, there, "this machine" if address is None else f"the cluster at {address}")


def _require_health(address: str, instead: str) -> None:
    """Ask first, in a process that can be given up: joining a cluster that is gone would hang for minutes."""
    if "://" in address:
        raise UsageError(f"--address {address}: give auto or HOST:PORT, and run this on a node of the cluster.")
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        command += ["--address", address]
    try:
        subprocess.run(command, capture_output=True, timeout=HEALTH_SECONDS, check=True)  # noqa: S603 - our own words
    except (subprocess.SubprocessError, OSError):
        raise Unreachable(
            f"no Ray cluster answers at {address}. Start one (ray start --head), check the address, or {instead}."
        ) from None
