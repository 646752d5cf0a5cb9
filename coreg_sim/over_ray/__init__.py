"""A federation over Ray: many sites a process, on this machine or a cluster. Nobody else but the runner of jobs knows Ray."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from coreg_sim.federation.simulate import Carried
from coreg_sim.over_ray.closed_form import closed_form
from coreg_sim.over_ray.cluster import Cluster, connected
from coreg_sim.over_ray.transport import RayActors
from site_agent.machine.site_data import PrivateData

__all__ = ["Cluster", "OverRay", "RayActors", "closed_form", "connected"]


@dataclass(frozen=True)
class OverRay:
    """Carries sites in actors of a running Ray: what `simulate` takes."""

    cluster: Cluster
    sites_per_actor: int | None = None

    @contextmanager
    def __call__(self, data: Mapping[str, PrivateData]) -> Iterator[Carried]:
        """The transport, and what its sites end with."""
        transport = RayActors(self.cluster, data, sites_per_actor=self.sites_per_actor)
        yield Carried(transport, transport.results.get, lambda: transport.failure)
