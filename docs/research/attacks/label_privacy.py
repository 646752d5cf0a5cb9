"""A party that reads every randomised label of a site guesses the true ones no more often than ε
allows.

It knows more than all other members together: the labels as they leave the site, one by one.
Without other knowledge the best guess of a yes/no label is the randomised one. It is right with
probability e^ε/(1 + e^ε) at most. With k releases of one label, here as k targets, kε stands for ε.

The ratio P(output | one label)/P(output | another) is e^ε at most for every output. It is counted
from labels of the agent's own code: 0 and 1, and the two ends of a range of numbers.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from math import exp, inf
from typing import Any

import numpy as np
from federation import reported

from coreg_core.objectives.additive import Additive
from coreg_core.plan import Plan
from coreg_core.terms import Iteration, Membership, Privacy
from site_agent.machine.additive import AdditiveComputation
from site_agent.site_data import PrivateData

LABELS = 50_000
TARGETS = 3
YES_NO = Additive(task="classification")
NUMBERS = Additive(label_range=(0.0, 1.0))


def released(terms: Additive, labels: Any, target: str = "y") -> Any:
    """What a site's own code lets leave of these labels."""
    rows = np.zeros((len(labels), 1))
    names = tuple(f"p{i} {y!r}" for i, y in enumerate(labels.tolist()))
    own = {"salt": b"secret of a site", "positions": np.arange(len(rows)), "row_keys": names}
    data = PrivateData(rows, labels, rows, "ids", **own, target=target)
    plan = Plan("run-1", "attacked", Membership(("a", "b"), 2), terms, Iteration(), Privacy())
    return AdditiveComputation(plan, terms, "a", data, lambda n: n, os.urandom)._randomised


def largest_ratio(outputs: Any, labels: Any, edges: Any) -> float:
    """The largest logarithm of a ratio over cells of outputs, less four of its standard errors: a
    value above ε would refute the guarantee.
    """
    counts = [np.histogram(outputs[labels == label], edges)[0] for label in (0.0, 1.0)]
    one, other = (np.maximum(each, 1.0) for each in counts)
    errors = np.sqrt(1.0 / one + 1.0 / other)
    return float(np.max(np.abs(np.log(one / other)) - 4.0 * errors))


@reported
def attack(epsilons: tuple[float, ...] = (1.0, 2.0, 4.0)) -> Iterator[tuple[str, Any]]:
    """By ε: the share of labels that are guessed right, and the bound; the same of three releases;
    the largest logarithm of a ratio that is certain, of yes/no labels and of numbers.
    """
    labels = np.arange(LABELS) % 2.0
    for epsilon in epsilons:
        yes_no = replace(YES_NO, label_epsilon=epsilon)
        one = released(yes_no, labels)
        three = [released(yes_no, labels, f"target {t}") for t in range(TARGETS)]
        most = np.mean(three, axis=0) > 0.5
        places = released(replace(NUMBERS, label_epsilon=epsilon), labels)
        cells = np.array([-inf, *np.linspace(-1.0, 2.0, 31), inf])
        yield (
            f"{epsilon:g}",
            {
                "guessed": float(np.mean(one == labels)),
                "bound": 1.0 / (1.0 + exp(-epsilon)),
                "guessed of three": float(np.mean(most == labels)),
                "bound of three": 1.0 / (1.0 + exp(-TARGETS * epsilon)),
                "ratio of yes/no": largest_ratio(one, labels, [-0.5, 0.5, 1.5]),
                "ratio of numbers": largest_ratio(places, labels, cells),
            },
        )
