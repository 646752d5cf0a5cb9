"""Ray: start it on this machine and stop it, or join and leave an existing cluster.

This module ends only processes that it started. Every wait has a timeout.
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

HEALTH_SECONDS = 30.0  # timeout of the health check: Ray itself would retry for minutes


@dataclass(frozen=True)
class Cluster:
    """A running Ray: the module, the cores of all its nodes, and its location for messages (this machine, or the address)."""

    ray: Any
    cpus: int
    where: str


@contextmanager
def connected(address: str | None = None, *, instead: str) -> Iterator[Cluster]:
    """A running Ray, for as long as the block lasts.

    Without an address, Ray is started on this machine with all cores. ``auto`` or HOST:PORT joins a cluster;
    this process must run on one of its nodes. ``instead`` is advice for a user without Ray; the errors end with it.

    Raises
    ------
    UsageError
        Ray is not installed, or the address has a form that is not supported.
    Unreachable
        Ray does not start, or no cluster answers there.
    """
    # Set before Ray is imported; its processes inherit it.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # otherwise Ray warns of a future change
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage statistics
    # Ray reports processes that died on standard output, where a --json run has its rows. The transport reports them.
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
    try:
        import ray
    except ImportError:
        raise UsageError(f"Ray is not installed: pip install '.[sim]' in the clone of coreg, or {instead}.") from None
    with ExitStack() as stack:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address is None:
            # A separate folder: Ray finds no other session, and no files remain.
            folder = tempfile.TemporaryDirectory(prefix="coreg-ray-", ignore_cleanup_errors=True)
            options |= {"address": "local", "_temp_dir": stack.enter_context(folder)}
            options["include_dashboard"] = False
        else:
            _require_health(address, instead)
            options["address"] = address
        try:
            ray.init(**options)
        except Exception as error:  # noqa: BLE001 - it fails in many ways, with the same remedy
            where = "here" if address is None else f"at {address}"
            raise Unreachable(f"Ray does not start {where} ({error}). {instead[0].upper()}{instead[1:]}.") from None
        stack.callback(ray.shutdown)
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        there = int(resources.get("CPU", 0))
        if there < 1:
            raise Unreachable(f"Ray at {address} has no core for actors. Add a node with cores, or {instead}.")
        yield Cluster(ray, there, "this machine" if address is None else f"the cluster at {address}")


def _require_health(address: str, instead: str) -> None:
    """Check the cluster in a process with a timeout: joining a cluster that is down would hang for minutes."""
    if "://" in address:
        raise UsageError(f"--address {address}: give auto or HOST:PORT, and run this on a node of the cluster.")
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    if address != "auto":
        command += ["--address", address]
    try:
        subprocess.run(command, capture_output=True, timeout=HEALTH_SECONDS, check=True)  # noqa: S603 - our own arguments
    except (subprocess.SubprocessError, OSError):
        raise Unreachable(
            f"no Ray cluster answers at {address}. Start one (ray start --head), check the address, or {instead}."
        ) from None
