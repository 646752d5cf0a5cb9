"""The centralised closed forms over Ray: factors in parallel, sums in a tree, and one node solves.

    exact: z* = [Σ_v N_v]⁻¹ Σ_v N_v m₀_v        finite spans: rows of the reduced stacked system, one by one

The sums run over the same tree as in one process (`closed_form.pairwise_sum`), so the solution has the same bits. Each actor
holds the factored views of an aligned 2ʲ of the sites, and adds up its own node of the tree.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coreg_core.agreement.closed_form import (
    Information,
    Kind,
    add_information,
    closed_form_of,
    information,
    kind_of,
    pairwise_sum,
    precision_weighted_mean,
    prediction_alone,
    reduced_rows,
    solve_reduced,
)
from coreg_core.agreement.objective import consensus_weight
from coreg_core.agreement.views import FunctionSpaceView, Solution, SpectralView, View
from coreg_core.errors import Unreachable
from coreg_core.numerics.arrays import Arr
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Plan
from coreg_sim.federation.problems import Problem
from coreg_sim.federation.simulate import ClosedForm, factored, solved
from coreg_sim.over_ray.transport import START_SECONDS, late, partition, share
from coreg_sim.ray_cluster import Cluster
from site_agent.site_data import PrivateData


class Factors:
    """The actor of some sites: their views, and their contributions to the solution."""

    def __init__(self, plan: Plan, data: Mapping[str, PrivateData], weight: float):
        self._plan, self._data, self._weight = plan, data, weight
        self._views: list[View] = []

    def ready(self) -> None:
        """Return when the actor has started."""

    def factor(self) -> list[Kind]:
        """Make the views, and return their kinds; Refused if a site would refuse the plan."""
        pin_threads(self._plan.iteration.threads)
        self._views = factored(self._data, self._plan)
        return [kind_of(view) for view in self._views]

    def information(self) -> Information:
        """The node of the tree for exact views."""
        known = [view for view in self._views if isinstance(view, FunctionSpaceView | SpectralView)]
        return pairwise_sum((information(view, self._weight) for view in known), add_information)

    def alone(self) -> list[Arr]:
        """The predictions of exact views without coupling."""
        return [prediction_alone(view) for view in self._views]

    def maps(self) -> list[Arr]:
        return [view.prediction_map for view in self._finite]

    def coordinates(self) -> list[Arr]:
        return [view.label_coordinates for view in self._finite]

    def solutions(self, z: Arr) -> list[Solution]:
        return [view.solve(z, self._weight) for view in self._views]

    @property
    def _finite(self) -> list[SpectralView]:
        return [view for view in self._views if isinstance(view, SpectralView)]


def closed_form(cluster: Cluster, problem: Problem, plan: Plan) -> ClosedForm:
    """`simulate.closed_form` on every core of a cluster.

    Raises
    ------
    Refused
        A site would refuse the plan.
    Unreachable
        An actor died: there is not enough memory for its views.
    """
    ray = cluster.ray
    started = time.perf_counter()
    names = sorted(problem.sites)
    weight = consensus_weight(plan.couplings[0], len(names))
    groups = partition(names, cluster.cpus, aligned(len(names), cluster.cpus))
    options = {"num_cpus": share(len(groups), cluster.cpus), "scheduling_strategy": "SPREAD"}
    actors = [
        ray.remote(Factors).options(**options).remote(plan, {name: problem.sites[name] for name in group}, weight)
        for group in groups
    ]
    try:
        try:
            ray.get([actor.ready.remote() for actor in actors], timeout=START_SECONDS)
        except ray.exceptions.GetTimeoutError:
            raise Unreachable(late(cluster)) from None
        kind = closed_form_of(_flat(ray, [actor.factor.remote() for actor in actors]))
        z = _exact(ray, actors, weight) if kind == "exact" else _finite(cluster, actors, plan)
        shared = ray.put(z)
        solutions: list[Solution] = _flat(ray, [actor.solutions.remote(shared) for actor in actors])
        return solved(solutions, plan, started)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, Exception) else error) from None
    except ray.exceptions.RayActorError as error:
        raise Unreachable(
            f"an actor with the views of {max(map(len, groups))} sites died ({type(error).__name__}), probably of too little "
            "memory. Use fewer sites or shared instances, or more nodes (--address)."
        ) from None
    finally:
        for actor in actors:
            ray.kill(actor)


def aligned(sites: int, cpus: int) -> int:
    """The number of sites of an actor: a power of two, so that its sum is a node of the tree and every core has work."""
    return 1 << (max(1, sites // cpus).bit_length() - 1)


def _exact(ray: Any, actors: Sequence[Any], weight: float) -> Arr:
    if weight == 0.0:
        mean: Arr = np.mean(_flat(ray, [actor.alone.remote() for actor in actors]), axis=0)
        return mean
    add = _beside(ray, add_information)
    total = pairwise_sum([actor.information.remote() for actor in actors], add.remote)
    z: Arr = ray.get(_beside(ray, precision_weighted_mean).remote(total, weight))
    return z


def _finite(cluster: Cluster, actors: Sequence[Any], plan: Plan) -> Arr:
    ray, coupling = cluster.ray, plan.couplings[0]
    maps = [actor.maps.remote() for actor in actors]
    coordinates: list[Arr] = _flat(ray, [actor.coordinates.remote() for actor in actors])
    M = len(coordinates)
    # Later sites have longer rows, so every core gets long and short ones.
    step = min(M, cluster.cpus)
    some = _beside(ray, _some_rows)
    shares = ray.get([some.remote(range(first, M, step), coupling, *maps) for first in range(step)])
    rows = [shares[v % step][v // step] for v in range(M)]
    return solve_reduced(rows, coordinates, _flat(ray, maps))


def _beside(ray: Any, function: Any) -> Any:
    """A task that requests no core: the actors reserve all cores, but are idle while it runs."""
    return ray.remote(function).options(num_cpus=0)


def _flat(ray: Any, lists: list[Any]) -> list[Any]:
    return [each for some in ray.get(lists) for each in some]


def _some_rows(sites: range, coupling: float, *maps: list[Arr]) -> list[Arr]:
    pin_threads(1)
    every = [P for some in maps for P in some]
    return [reduced_rows(v, every[v].T @ every[v], every, coupling) for v in sites]
