"""The cost of members_may_learn = "sums" for the additive objective: one operator without tuning against six tuning steps.

    python benchmarks/strict.py --data DIR [--draws 1] [--write]

Changes of the root mean squared error of own models and of joint scores against each site alone, and the
share of sites worse by more than 2 %, on the second group of sets of the benefit study. Each set counts once.
--write saves them in benchmarks/results/benefit/strict.json; docs/research/benefit.md quotes them.
"""

import zlib
from collections import defaultdict
from pathlib import Path

from harness import arguments, keep, show  # before numpy

# isort: split
import numpy as np

from benchmarks.benefit.partition import REGIMES, partition
from benchmarks.benefit.study import JUDGED_ON, table_named
from benchmarks.benefit.summary import HARM
from benchmarks.benefit.trial import StudiedFederation
from coreg_core.additive.model.terms import Additive

FORMS = {"six tuning steps": Additive(), "one operator": Additive(tuning_steps=0, probes=1)}
LABELS = ("n10", "n20", "n50", "n200")


def changes(folder, name, regime, draw):
    """For each form, the change by own models and by joint scores, and their harmed shares; None if the table is too small."""
    seed = (draw, zlib.crc32(name.encode()), zlib.crc32(regime.encode()))
    drawn = partition(table_named(folder, name), REGIMES[regime], seed, 4000)
    if drawn is None:
        return None
    federation, found = StudiedFederation(drawn, draw), {}
    alone = np.sqrt(federation.alone)
    for form, terms in FORMS.items():
        own, together = federation.under(terms)
        change = np.sqrt([own, together]) / alone - 1
        found[form] = [*change.mean(axis=1), *(change > HARM).mean(axis=1)]
    return found


def main():
    options = arguments(__doc__, data=Path(), draws=1, write=False)
    table = []
    for regime in LABELS:
        by_form = defaultdict(list)
        for name in JUDGED_ON:
            drawn = [changes(options.data, name, regime, draw) for draw in range(options.draws)]
            for form in FORMS:
                told = [each[form] for each in drawn if each is not None]
                if told:
                    by_form[form].append(np.mean(told, axis=0))
        for form, told in by_form.items():
            figures = dict(
                zip(("own", "together", "own_harmed", "together_harmed"), np.mean(told, axis=0).tolist(), strict=True)
            )
            table.append(show({"labels": REGIMES[regime].name[1:], "form": form} | figures | {"sets": len(told)}))
    if options.write:
        keep("benchmarks/results/benefit/strict.json", draws=options.draws, table=table)


if __name__ == "__main__":
    main()
