"""The additive objective on a real table: messages against the oracle, rounds, and what joining is worth."""

import numpy as np
import pytest
from additive_problems import oracle, train
from sklearn.datasets import load_diabetes

from coreg_core.additive.model.terms import Additive
from coreg_core.additive.site import AdditiveSite
from coreg_core.agreement.schedules.schedule import Stop


class Dealt:
    """Diabetes' ten columns dealt out to three sites with rows of their own."""

    def __init__(self, terms, n, seed):
        data = load_diabetes(scaled=False)
        rng = np.random.default_rng(seed)
        rows, columns = rng.permutation(len(data.target)), rng.permutation(10)
        shared, test = rows[:200], rows[200:300]
        self.n_unlabelled, self.sites, self.tables = 200, [], []
        offset = 300
        for v, count in enumerate(n):
            own, mine = rows[offset : offset + count], columns[v::3]
            offset += count
            X, y, Z = data.data[own][:, mine], data.target[own], data.data[shared][:, mine]
            self.sites.append(AdditiveSite(X, y.astype(float), Z, terms, name=f"clinic {v}"))
            self.tables.append((data.data[test][:, mine], data.target[test]))


@pytest.mark.parametrize("n", [(20, 20, 20), (60, 10, 10), (60, 0, 0)], ids=str)
def test_messages_alone_on_diabetes(n):
    """The default, but solved to the end: 1e-8 of a deviation from the dense oracle, within 60 rounds of vectors."""
    terms = Additive(final_tolerance=1e-13)
    made = Dealt(terms, n, seed=0)
    training, state = train(made, terms)
    s, a, _ = oracle(made, terms, state)
    assert training.stop(state) in (Stop.CONVERGED, Stop.STAGNATED)
    assert np.abs(state.x[:200, 0] + state.x[-1, 0] - s - a).max() < 1e-8
    assert state.rounds <= 60


def test_joining_is_worth_it_for_sites_with_few_labels():
    """Mean over draws; the figures of docs/research/mathematics.md and benchmarks/additive_results.txt are over 18 sets."""
    terms = Additive()
    changes = []
    for seed in range(6):
        made = Dealt(terms, (20, 20, 20), seed)
        train(made, terms)
        for site, (rows, y) in zip(made.sites, made.tables, strict=True):
            errors = [np.sqrt(np.mean((y - f.predict(rows)) ** 2)) for f in (site.model.own, site.model.alone)]
            changes.append(errors[0] / errors[1] - 1)
    assert np.mean(changes) < -0.02
    assert np.mean(np.array(changes) > 0.1) < 0.15
