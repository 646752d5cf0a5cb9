"""Checks of sites in Ray's actors, in a process of its own: `python ray_checks.py one-node |
two-nodes`.

Ray starts once. The process prints "ready"; then it reads a check's name a line, runs the check,
and prints one line: empty, or the traceback as JSON. Without Ray it ends with the exit code of
Unreachable.
"""

import asyncio
import json
import os
import sys
import tempfile
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from coordinator.machine.events import Received, SiteJoined
from coreg_core.errors import Unreachable
from coreg_core.messages import (
    PROTOCOL_VERSION,
    Answer,
    Finished,
    FromSite,
    Hello,
    Rejected,
    Report,
    Step,
    ToSite,
    Words,
)
from coreg_core.objectives.agreement import Agreement
from coreg_core.outcomes import Outcome
from coreg_core.plan import Plan
from coreg_core.terms import Iteration, Membership, Privacy
from coreg_sim.closed_form import closed_form, distance_from_closed_form
from coreg_sim.over_ray import OverRay, RayActors, connected
from coreg_sim.problems import generated, same_condition
from coreg_sim.simulate import Hosted, plan_for, simulate

PLAN = Plan(
    "run-1", "checks", Membership(("a", "b", "c"), 3), privacy=Privacy(aggregation="plaintext")
)
MIB = 1 << 17  # numbers


# --- the transport, on sites that echo ------------------------------------------------------------


@dataclass
class Echo:
    """Answers every step with its own words, and remembers what it heard.

    A step without words is its last.
    """

    name: str
    heard: list[ToSite] = field(default_factory=list)

    def hello(self) -> Hello:
        return Hello(self.name, PROTOCOL_VERSION, "echo")

    @property
    def result(self) -> list[ToSite]:
        return self.heard

    def handle(self, message: ToSite) -> list[FromSite]:
        self.heard.append(message)
        if isinstance(message, Step):
            return [answered(message)]
        return []


def echo(name, data, fold):
    assert data == name.upper()
    return Echo(name)


def step(summed=4, number=0):
    values = np.random.default_rng(number).integers(0, 1 << 64, summed, dtype="<u8")
    return Step("run-1", 0, number, summed=Words(values))


def answered(step):
    report = Report(outcome="CONVERGED")
    if step.summed is not None:
        report = Report(outcome="")
    return Answer(step.run, step.attempt, step.step, report, step.summed)


def messages_keep_their_order_and_what_is_rejected_or_closed_hears_no_more(cluster):
    events = asyncio.Queue()

    async def take(count):
        return [await asyncio.wait_for(events.get(), 60) for _ in range(count)]

    async def main():
        actors = RayActors(cluster, {name: name.upper() for name in "cab"}, make=echo)
        await actors.start(lambda event, handled=None: events.put_nowait(event))
        assert await take(3) == [SiteJoined(Echo(name).hello()) for name in "cab"]
        for words in (1, 2 * MIB + 1):
            await actors.send("a", step(words))
            assert await take(1) == [Received("a", answered(step(words)))]
        assert actors.traffic.sent == actors.traffic.received == 8 * (2 * MIB + 2)
        for number in range(20):
            for name in "abc":
                await actors.send(name, step(number=number))
        received = await take(60)
        for name in "abc":
            assert [e.message.step for e in received if e.site == name] == list(range(20))
        await actors.reject("a", "its list differs")
        for message in (step(), Finished("run-1", Outcome.CONVERGED, "")):
            await actors.send("a", message)  # nobody is there any more
        await actors.send("nobody", step())
        await asyncio.sleep(
            0
        )  # the loop's next turn sends; it has heard why, as its neighbour in the actor can tell
        heard = await actors.home["a"].handle.__ray_call__.remote(
            lambda host: host.sites["a"].heard
        )
        assert heard[-1] == Rejected("its list differs")
        last = Step("run-1", 1, 0)
        for name in "bc":
            await actors.send(name, last)
        await actors.close()  # delivers what is queued
        assert actors.results["b"][-1] == last
        assert actors.results["c"][-1] == last
        assert "a" not in actors.results
        await actors.send("b", step())
        assert events.empty(), "what a session says once it is closed is no event"

    asyncio.run(main())


# --- whole runs -----------------------------------------------------------------------------------


def same(left, right):
    assert left.predictions.tobytes() == right.predictions.tobytes()
    for figure in ("rounds", "numbers_sent", "certified_gap"):
        assert getattr(left, figure) == getattr(right, figure)
    for mine, other in zip(
        (*left.solutions, *left.alone), (*right.solutions, *right.alone), strict=True
    ):
        assert mine.function.coef.tobytes() == other.function.coef.tobytes()


def both_solvers_end_on_the_bits_of_one_process_masked_or_not(cluster):
    problem = generated(5, 10, 40, 2, seed=1)
    for form, solver in (
        ("exact", "block-coordinate-descent"),
        ("semi-parametric", "conjugate-gradients"),
    ):
        terms = Agreement(form=form, coupling=(0.1,)), Iteration(solver, 1e-8, 1e-3)
        here = simulate(problem, plan_for(problem, *terms))
        same(simulate(problem, plan_for(problem, *terms), hosting=OverRay(cluster)), here)
        assert here.outcome is Outcome.CONVERGED
    masked = simulate(
        problem, plan_for(problem, *terms, aggregation="secure"), hosting=OverRay(cluster)
    )
    same(replace(masked, numbers_sent=here.numbers_sent), here)
    assert masked.numbers_sent > here.numbers_sent, "it has tags"


def the_distance_from_the_closed_form_is_that_of_one_process(cluster):
    problem = same_condition(3, 20, 60, 4, seed=0)
    plan = plan_for(problem, Agreement(), Iteration("block-coordinate-descent", 1e-13, 1e-7))
    exact = closed_form(problem, plan)
    over_ray = simulate(problem, plan, hosting=OverRay(cluster))
    distance = distance_from_closed_form(problem, over_ray, exact)
    assert distance == distance_from_closed_form(problem, simulate(problem, plan), exact)
    assert 0.0 < distance < 1e-6


def an_actor_that_dies_ends_the_simulation(cluster):
    problem = generated(2, 5, 10, 2, seed=0)
    actors = RayActors(cluster, problem.sites, make=lambda name, *_: Mortal(name))

    @contextmanager
    def hosting(_data):
        yield Hosted(actors, actors.results.get, lambda: actors.failure)

    assert "an actor died with s" in raised(
        Unreachable, lambda: simulate(problem, plan_for(problem), hosting=hosting)
    )


class Mortal(Echo):
    def handle(self, message: ToSite) -> list[FromSite]:
        os._exit(1)


def raised(kind, work) -> str:
    with pytest.raises(kind) as error:
        work()
    return str(error.value)


# --- two nodes ------------------------------------------------------------------------------------


def both_nodes_are_used_and_the_bits_are_the_same(cluster):
    problem = generated(6, 10, 50, 2, seed=4)
    plan = plan_for(problem, Agreement(coupling=(0.1,)))
    nodes = set()
    actors = []

    @contextmanager
    def hosting(data):
        with OverRay(cluster)(data) as hosted:
            actors.extend(hosted.transport.actors)
            yield hosted

    def look(notice):
        if notice.name == "run_ended":
            nodes.update(
                cluster.ray.get([actor.handle.__ray_call__.remote(node_of) for actor in actors])
            )

    same(simulate(problem, plan, look, hosting), simulate(problem, plan))
    assert len(nodes) == 2, nodes


def node_of(_host):
    import ray

    return ray.get_runtime_context().get_node_id()


CHECKS = {
    "one-node": (
        messages_keep_their_order_and_what_is_rejected_or_closed_hears_no_more,
        both_solvers_end_on_the_bits_of_one_process_masked_or_not,
        the_distance_from_the_closed_form_is_that_of_one_process,
        an_actor_that_dies_ends_the_simulation,
    ),
    "two-nodes": (both_nodes_are_used_and_the_bits_are_the_same,),
}


@contextmanager
def two_nodes():
    from ray.cluster_utils import Cluster  # its processes are children of this one, and end with it

    with tempfile.TemporaryDirectory(prefix="coreg-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder  # where Ray writes which cluster was started last
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        try:
            nodes.add_node(num_cpus=1)
            with connected(nodes.address, instead="leave") as cluster:
                yield cluster
        finally:
            nodes.shutdown()


def main() -> None:
    checks = {check.__name__: check for check in CHECKS[sys.argv[1]]}
    with connected(instead="leave") if sys.argv[1] == "one-node" else two_nodes() as cluster:
        print("ready", flush=True)  # noqa: T201
        for name in map(str.strip, sys.stdin):
            try:
                checks[name](cluster)
                fault = ""
            except Exception:  # noqa: BLE001 - whatever it is, the test reports it
                fault = json.dumps(traceback.format_exc())
            print(fault, flush=True)  # noqa: T201


if __name__ == "__main__":
    try:
        main()
    except Unreachable as error:
        sys.stderr.write(str(error))
        sys.exit(Unreachable.exit_code)
