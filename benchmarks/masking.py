"""What masks cost: the CPU of one site's answer, and of the coordinator's sum, masked and in the clear, with M sites.

Eight sites and a million shared instances are the figure of docs/protocol.md.
"""

import time

import numpy as np
from harness import arguments, least, show

from coreg_core.agreement.views import make_view
from coreg_core.kernels.bases import LabelledPoints
from coreg_core.kernels.functions import Gaussian
from coreg_core.masking.fixed_point import exponent_for, on_the_grid
from coreg_core.masking.sums import Layout, opened, summand, total
from coreg_core.protocol.messages import Participant, Roster
from coreg_core.protocol.plan import Agreement, Membership, Plan, Privacy
from coreg_sim.federation.masks import simulated_keys


def spent(work, repeats: int = 3) -> tuple[float, object]:
    """The least CPU seconds, and the result."""
    return least(work, repeats, time.process_time)


def main() -> None:
    """Print one JSON object."""
    given = arguments(__doc__, m=1_000_000, sites=8, labelled=100)
    m, M, rng = given.m, given.sites, np.random.default_rng(0)
    names = tuple(f"s{v}" for v in range(M))
    plan = Plan("bench", "bench", Membership(names, M), Agreement(coupling=(0.1,)), privacy=Privacy("secure"))
    keys = {name: simulated_keys(name) for name in names}
    offers = {name: keys[name].offer(plan) for name in names}
    told = tuple(Participant(name, o.key, o.signature, o.identity) for name, o in offers.items())
    agreeing, masks = spent(lambda: keys[names[0]].agree(plan, Roster("bench", 0, told)), 1)

    X, Z = rng.normal(size=(given.labelled, 5)), rng.normal(size=(m, 5))
    view = make_view(LabelledPoints(), Gaussian(10.0), X, X.sum(axis=1), Z, 0.1)
    target, weight = rng.normal(size=(m, 1)), np.array([0.2 * M])
    exponents = (exponent_for(float(np.linalg.norm(target)), M),)
    answering, values = spent(lambda: view.respond(target, weight, "linear"))
    rounding, _ = spent(lambda: on_the_grid(values, exponents, 1))

    def masked():
        layout, words = summand(values, (1.0, 2.0, 3.0, 4.0), exponents, M)
        masks.add(layout, words, b"context")
        return words

    masking, words = spent(masked)
    layout = Layout(m, 1, 4)
    plain = [summand(values, (1.0, 2.0, 3.0, 4.0), exponents, M)[1] for _ in range(M)]
    summing, summed = spent(lambda: total(layout, plain))
    opening, _ = spent(lambda: opened(layout, summed, exponents))
    floats = [values] * M
    adding, _ = spent(lambda: np.sum(floats, axis=0))
    clear, sums = answering + rounding, answering + masking
    show({
        "m": m, "sites": M, "agreeing_on_keys": agreeing, "answering": answering, "rounding_in_the_clear": rounding,
        "encoding_and_masking": masking, "site_sums_over_clear": sums / clear, "coordinator_sum_of_words": summing + opening,
        "coordinator_sum_of_floats": adding, "bytes_an_answer": int(words.nbytes),
    })  # fmt: skip


if __name__ == "__main__":
    main()
