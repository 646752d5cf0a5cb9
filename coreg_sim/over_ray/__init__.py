"""A federation over Ray: many sites in each process, on this machine or a cluster."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from coreg_core.protocol.plan import Plan
from coreg_sim.federation.problems import Problem
from coreg_sim.federation.simulate import ClosedForm, Hosted
from coreg_sim.over_ray.closed_form import closed_form
from coreg_sim.over_ray.transport import RayActors
from coreg_sim.ray_cluster import Cluster
from site_agent.site_data import PrivateData

__all__ = ["OverRay", "RayActors"]


@dataclass(frozen=True)
class OverRay:
    """A `Hosting` in actors of a running Ray."""

    cluster: Cluster
    sites_per_actor: int | None = None

    @contextmanager
    def __call__(self, data: Mapping[str, PrivateData]) -> Iterator[Hosted]:
        transport = RayActors(self.cluster, data, sites_per_actor=self.sites_per_actor)
        yield Hosted(transport, transport.results.get, lambda: transport.failure)

    def closed_form(self, problem: Problem, plan: Plan) -> ClosedForm:
        """`simulate.closed_form` on every core; raises Refused and Unreachable."""
        return closed_form(self.cluster, problem, plan)
