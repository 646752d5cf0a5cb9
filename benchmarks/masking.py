"""Cost of masks: CPU time of one site's answer and of the coordinator's sum, masked and in
plaintext, with M sites.

docs/reference/protocol.md has the figure for eight sites and a million shared instances.
"""

import itertools
import time

import numpy as np
from harness import arguments, least, show

from coreg_core.agreement.views import make_view
from coreg_core.kernels import Gaussian
from coreg_core.messages import Offer
from coreg_core.objectives.agreement import Agreement
from coreg_core.plan import Plan
from coreg_core.secure.sums import Layout, exponents_for, opened, summand
from coreg_core.spans import LabelledPoints
from coreg_core.terms import Membership, Privacy
from coreg_sim.simulate import simulated_keys
from site_agent.machine.roster import transcript_of


def spent(work, repeats: int = 3) -> tuple[float, object]:
    """The smallest CPU seconds, and the result."""
    return least(work, repeats, time.process_time)


def main() -> None:
    """Print one JSON object."""
    given = arguments(__doc__, m=1_000_000, sites=8, labelled=100)
    m = given.m
    M = given.sites
    rng = np.random.default_rng(0)
    names = tuple(f"s{v}" for v in range(M))
    plan = Plan(
        "bench",
        "bench",
        Membership(names, M),
        Agreement(coupling=(0.1,)),
        privacy=Privacy("secure"),
    )
    about = {"run": plan.run, "attempt": 0, "plan_digest": plan.digest, "n_unlabelled": m}
    empty = dict.fromkeys(("ids_digest", "data_digest", "key", "identity", "signature"), "")
    plain = {name: Offer(site=name, release="", **about, **empty) for name in names}
    secrets = {name: simulated_keys(name).draw(offer) for name, offer in plain.items()}
    roster = tuple(secret.offer for secret in secrets.values())
    transcript = transcript_of(plan, roster)
    wrapped = {name: secret.wrap(roster, transcript) for name, secret in secrets.items()}

    def agree(name):
        secrets[name].wrap(roster, transcript)
        return secrets[name].unwrap(
            {other: wrapped[other][name] for other in names if other != name}
        )

    agreeing, _ = spent(lambda: agree(names[0]), 1)
    seals = {name: agree(name) for name in names}

    X = rng.normal(size=(given.labelled, 5))
    Z = rng.normal(size=(m, 5))
    view = make_view(LabelledPoints(), Gaussian(10.0), X, X.sum(axis=1), Z, 0.1)
    target = rng.normal(size=(m, 1))
    weight = np.array([0.2 * M])
    exponents = exponents_for(np.array([np.linalg.norm(target)]), M)
    answering, values = spent(lambda: view.respond(target, weight, "linear"))

    layout = Layout(m, 1, 4)
    contexts = itertools.count()

    def masked(name, context):
        words = summand(layout, values, (1.0, 2.0, 3.0, 4.0), exponents, M)
        return seals[name].mask(context, words, names)

    masking, _ = spent(lambda: masked(names[0], b"%d" % next(contexts)))
    sent = [masked(name, b"of all") for name in names]
    summing, summed = spent(lambda: np.add.reduce(sent))

    def read():
        words = seals[names[0]].open(b"of all", summed, layout.size, names)
        return opened(layout, words, exponents)

    opening, _ = spent(read)
    floats = [values] * M
    adding, _ = spent(lambda: np.sum(floats, axis=0))
    clear = answering
    sums = answering + masking
    show({
        "m": m, "sites": M, "agreeing_on_keys": agreeing, "answering": answering,
        "encoding_and_masking": masking, "site_sums_over_clear": sums / clear,
        "coordinator_sum_of_words": summing,
        "site_opening": opening,
        "coordinator_sum_of_floats": adding, "bytes_an_answer": int(sent[0].nbytes),
    })  # fmt: skip


if __name__ == "__main__":
    main()
