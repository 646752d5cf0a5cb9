"""Seconds of `POST /score` for 100 ids, with three agents that serve over mutual TLS; and how often
the interval has the truth.

    python benchmarks/scores_on_demand.py [--sizes 1000 10000 100000] [--repeats 10]

Each site has the same individuals, three columns of its own, and labels of 60 of them. The study
stands after its first run. The time is the program's, from the request to the answer.
"""

import csv
import statistics
import time

import numpy as np
from harness import arguments, folder, show

from federation import ADDITIVE, SITES, federation, until  # isort: skip - harness adds its folder
from test_scores_on_demand import STANDING, asked, free_port  # isort: skip

ALIGNED = ADDITIVE.replace("align = false", "align = true\nmax_ids = 1000000")
POLICY = 'objectives = ["additive"]\nscores_a_day = 1000000\nmax_alignment_ids = 1000000'
LABELLED = 60
ASKED = 100


def tables(work, count):
    """A label of 60 individuals at each site, and the noise-free score of all."""
    rng = np.random.default_rng(3)
    hidden = rng.normal(size=(count, 9))
    truth = hidden.sum(axis=1) / 3
    labels = truth + 0.3 * rng.normal(size=count)
    for v, site in enumerate(SITES):
        own = range(LABELLED * v, LABELLED * (v + 1))
        with (work / f"{site}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "a", "b", "c", "y"])
            for i in range(count):
                columns = map(repr, hidden[i, 3 * v : 3 * v + 3].tolist())
                writer.writerow([f"p{i}", *columns, repr(float(labels[i])) if i in own else ""])
    return labels


def measured(count, repeats):
    with folder() as work, federation(work, POLICY) as fed:
        labels = tables(work, count)
        port = free_port()
        fed.serve()
        fed.stays("north", more=f'listen = "127.0.0.1:{port}"')
        fed.stays("south")
        fed.stays("west")
        fed.study("parts", ALIGNED, model="")
        fed.study("now", STANDING)
        for study in ("parts", "now"):
            run = fed.submit(study)
            until(lambda run=run: fed.over(run))
            assert fed.run_of(run)["stop"] == "CONVERGED", fed.run_of(run)
        rng = np.random.default_rng(0)
        seconds = []
        within = []
        for _ in range(repeats):
            places = rng.choice(np.arange(LABELLED * len(SITES), count), ASKED, replace=False)
            since = time.perf_counter()
            status, answer = asked(port, [f"p{i}" for i in places])
            seconds.append(time.perf_counter() - since)
            assert status == 200, answer
            assert {score["from"] for score in answer["scores"]} == {"sites"}
            ends = [(score["low"], score["high"]) for score in answer["scores"]]
            within += [a <= labels[i] <= b for i, (a, b) in zip(places, ends, strict=True)]
            time.sleep(1.1)  # a site that caused a run rests for a second
        return {
            "individuals": count,
            "ids": ASKED,
            "median s": round(statistics.median(seconds), 3),
            "most s": round(max(seconds), 3),
            "first s": round(seconds[0], 3),
            "labels within 90 % intervals": round(float(np.mean(within)), 3),
        }


def main():
    given = arguments(__doc__, sizes=[1000, 10000], repeats=10)
    for count in given.sizes:
        show(measured(count, given.repeats))


if __name__ == "__main__":
    main()
