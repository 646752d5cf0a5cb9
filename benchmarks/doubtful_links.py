"""Links of ids that a site doubts: kept, left out by this site, or left out by all sites.

    python benchmarks/doubtful_links.py --data DIR [--draws 2] [--write]

A share of each site's shared rows belongs to other individuals, and the site knows which. Changes of the root mean squared
error of own models and of joint scores against each site alone, on the second group of sets of the benefit study; each set
counts once. --write saves them in docs/research/benefit/doubtful_links.json, for the table of docs/research/benefit.md.
"""

import zlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from harness import arguments, keep, show  # before numpy

# isort: split
import numpy as np

from coreg_core.additive.model.terms import Additive
from coreg_core.alignment.overlap import Overlap
from coreg_sim.benefit.partition import REGIMES, partition
from coreg_sim.benefit.study import JUDGED_ON, table_named
from coreg_sim.benefit.trial import Federation

LINKS = ("mislinked10", "mislinked30")
LEAST_SITES = 2  # that know a shared row


def federations(folder, name, regime, draw):
    """What the sites do with wrong links: a partition for each; none if the table is too small."""
    seed = (draw, zlib.crc32(name.encode()), zlib.crc32(regime.encode()))
    table = table_named(folder, name)
    wrong = partition(table, REGIMES[regime], seed, 1000)
    right = partition(table, replace(REGIMES[regime], mislinked=0.0), seed, 1000)  # the same rows: links are drawn last
    if wrong is None or right is None:
        return {}
    known = np.array(
        [(X[wrong.shared] == Z[right.shared]).all(axis=1) for X, Z in zip(wrong.columns, right.columns, strict=True)]
    )
    counts = known.sum(axis=0)
    some, every = counts >= LEAST_SITES, counts == len(known)
    overlaps = [Overlap(np.flatnonzero(each[some]), counts[some], len(known)) for each in known]
    return {
        "no wrong link": right,
        "kept": wrong,
        "left out by the site": replace(wrong, shared=wrong.shared[some], overlaps=overlaps),
        "left out by all sites": replace(wrong, shared=wrong.shared[every]),
    }


def changes(federation, seed):
    """The mean changes by own models and by joint scores."""
    drawn = Federation(federation, seed)
    own, together = drawn.errors(Additive())
    alone = np.sqrt(drawn.alone)
    return float(np.mean(np.sqrt(own) / alone - 1)), float(np.mean(np.sqrt(together) / alone - 1))


def main():
    options = arguments(__doc__, data=Path(), draws=2, write=False)
    table = []
    for regime in LINKS:
        found = defaultdict(lambda: defaultdict(list))
        for name in JUDGED_ON:
            for draw in range(options.draws):
                for links, drawn in federations(options.data, name, regime, draw).items():
                    found[links][name].append(changes(drawn, draw))
        for links, by_set in found.items():
            own, together = np.mean([np.mean(each, axis=0) for each in by_set.values()], axis=0)
            row = {"wrong": REGIMES[regime].mislinked, "links": links, "own": float(own), "together": float(together)}
            table.append(show(row | {"sets": len(by_set)}))
    if options.write:
        keep("docs/research/benefit/doubtful_links.json", draws=options.draws, table=table)


if __name__ == "__main__":
    main()
