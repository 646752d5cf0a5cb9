"""Members say falsely whom they have, and receive scores of an individual under many models and
sets of sites.

The set S of sites that say they have an individual scores it. Each model and S is another equation
φ·β(S) on the features of an honest site, the last one. *One* member needs the coordinator, which
leaves sites out; *all* others together do not. They know second moments, and ask first for the
equation that tells most. The individuals are in no training. *Honest*: one model. *Chosen*: also
two of later openings (`chosen_model.py`), with weights of the honest site's most uncertain
direction, and of the liars' features, which enter β(S) where S is without them. With three sites,
pairs are scored too (`scores_of_two`).
"""

import tempfile
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from chosen_model import words
from federation import reported, site_of, watched
from training import read, rows_of, train

from coreg_core.additive.exchange import SiteExchange
from coreg_core.additive.missing_features import ScoreWeights, ridged
from coreg_core.additive.terms import LABEL_UNIT, SCORE_NOISE
from coreg_core.objectives.scoring import Scoring
from coreg_core.plan import Plan
from coreg_core.secure import cross_products as cross
from coreg_core.terms import Membership
from site_agent.consent.consent import Consent
from site_agent.consent.memory import Memory
from site_agent.consent.policy import Policy
from site_agent.ledger import Ledger
from site_agent.machine.scoring import Batch

DEFAULT = Policy().models_per_individual
NO_LIMIT = 10_000
NEW = 60
SIZE, SHRINK = (
    7.5,
    0.3,
)  # deviations of a chosen score, whose square fits into a word; of moments of few rows


class Guess:
    """Mean (n, D) and covariance (D, D) of the features that the first p, those of the liars, leave
    open.
    """

    def __init__(self, w: ScoreWeights, p: int, phi: Any):
        B = np.eye(len(w.C), p)
        self.R = np.zeros_like(w.C)
        B[p:] = np.linalg.solve(ridged(w.C[:p, :p], int(w.rows), len(w.C), w.noise), w.C[:p, p:]).T
        self.mean = phi[:, :p] @ B.T
        left = w.C[p:, p:] - B[p:] @ w.C[:p, p:]
        self.R[p:, p:] = (
            ((1.0 - SHRINK) * left + SHRINK * np.diag(np.diag(left)))
            * w.rows
            / max(w.rows - p, 1.0)
        )

    def gain(self, equation: Any, variance: float) -> Any:
        """Of each feature, by a score with noise of this variance."""
        return self.R @ equation / (equation @ self.R @ equation + variance)

    def learn(self, scores: Any, equation: Any, gain: Any) -> None:
        """From the parts of the honest sites."""
        self.mean = self.mean + np.outer(scores - self.mean @ equation, gain)
        self.R = self.R - np.outer(gain, equation @ self.R)


def lie(first: SiteExchange, weights: Any) -> Any:
    """How the first site adds: it replaces b and the sum of squares by those of these weights, as
    in `chosen_model.py`.
    """
    T = first.terms
    part = first.fits[0].moments.parts[0]
    honest = SiteExchange.add

    def add(self: SiteExchange, messages: Any) -> Any:
        told, shares = honest(self, messages)
        if self.site == 0:
            scaled, b = (each / (LABEL_UNIT * T.targets[0].deviation) for each in (weights, part.b))
            told["b"] = told["b"] + cross.rounded(
                words((part.P @ scaled - b) / T.scale, T.exponent)
            )
            whole = words(scaled @ part.P @ scaled, T.exponent)
            told["scalars"][:, -1] += np.array(
                [whole & np.uint64(0xFFFFFFFF), whole >> np.uint64(32)]
            )
        return told, shares

    return add


def trained(sites: int, labelled: int, liars: int, seed: int) -> tuple[Any, Any]:
    """Models by opening and site, of three openings; and the features (n, D) of new individuals."""
    rows = rows_of(sites, labelled, NEW, seed)
    n = sites * labelled
    rng = np.random.default_rng(seed)
    common = {name: replace(own, Z=own.Z[:n], ids=own.ids[:n]) for name, own in rows.items()}
    made = train(common, 0.01, 0.5, "run-0", records := {name: Memory() for name in rows})[1]
    models = [[each.models(each.finish([]))[0] for each in made]]
    first = made[0]
    C = made[0].fits[0].moments.C
    phi = np.concatenate(
        [m.phi(own.Z[n:]) for m, own in zip(models[0], rows.values(), strict=True)], axis=1
    )
    mine = first.terms.blocks[-1]
    p = first.terms.blocks[liars].start
    weights = np.zeros(len(C))
    uncertain = np.linalg.eigh(Guess(models[0][0].weights, p, phi).R[mine, mine])[1]
    for k in (1, 2):
        for at, raw in ((slice(0, p), rng.normal(size=p)), (mine, uncertain[:, -k])):
            weights[at] = raw / np.sqrt(raw @ C[at, at] @ raw)
        weights *= SIZE * first.terms.targets[0].deviation / np.sqrt(weights @ C @ weights)
        with patch.object(SiteExchange, "add", lie(first, weights)):
            made = train(common, 0.01, 0.5, f"run-{k}", records)[1]
        models.append([each.models(each.finish([]))[0] for each in made])
    return models, phi


def scored(
    models: Any, phi: Any, liars: int, k: int, S: tuple[int, ...], folder: Path, limit: int
) -> Any:
    """What the first site receives, None if a site refused; and the reasons.

    Liars send zeros; honest agents start anew.
    """
    roster = tuple("abcdef")[: len(models[k])]
    sites = dict[str, Any]()
    policy = Policy(scores_of_two=True, models_per_individual=limit)
    with ExitStack() as stack:
        for v in sorted({*range(liars), *S}):
            name = roster[v]
            model = models[k][v]
            consent = None
            features = phi[:, model.weights.block(v)] * (v >= liars)
            missing = np.full(len(phi), v not in S)
            if v >= liars:
                consent = Consent(
                    policy, stack.enter_context(closing(Ledger(folder / name))).memory, lambda: 0.0
                )
            else:
                model = replace(model, weights=replace(model.weights, noise=0.0))
            about = f"run-{k}", "additive", f"sums {k}", roster, "new", name.encode()
            sites[name] = site_of(name, Batch(features, missing, model, 0.0, *about), consent)
        members = Membership(tuple(sites), min(len(roster) - 1, 3))
        terms = Scoring(f"run-{k}", receivers=("a",))
        refused = watched(Plan("score", "attacked", members, terms), sites).refused
    scores = getattr(sites["a"].result, "scores", None)  # none of a run that ended without
    return scores, list(refused.values())


def attacked(models: Any, phi: Any, liars: int, limit: int) -> dict[str, Any]:
    """R² of the honest site's features after each score, and refusals."""
    M = len(models[0])
    w = models[0][0].weights
    p = models[0][liars].block[0]
    unit = models[0][0].deviation_of_labels
    mine = w.block(M - 1)
    guess = Guess(w, p, phi)
    refused = list[str]()
    left = {}
    sets = [
        (*S, M - 1)
        for size in range(min(M - 1, 3) - 1, M)
        for S in combinations(range(M - 1), size)
    ]
    for k, S in product(range(len(models)), sets):  # the liars' own parts are no unknowns
        others = models[k][0].weights.of_sites(S) * (np.arange(len(w.C)) >= p)
        left[k, S] = (
            others,
            (SCORE_NOISE * unit) ** 2 * sum(u >= liars for u in S),
        )  # the grain adds 1 %
    truth = phi[:, mine]
    told = [guess.mean[:, mine]]
    with tempfile.TemporaryDirectory() as folder:
        while left and len(refused) < 6:
            best = max(
                left,
                key=lambda pair: guess.gain(*left[pair])[mine] @ (left[pair][0] @ guess.R)[mine],
            )
            equation = left.pop(best)
            asked = (models, phi, liars, *best, Path(folder), limit)
            scores, why = scored(*asked)
            if scores is None:
                refused += [*why, *scored(*asked)[1]]  # the same question again
                continue
            guess.learn(scores, equation[0], guess.gain(*equation))
            told.append(guess.mean[:, mine])
    return {"told": [read(truth, each, truth.mean(axis=0)) for each in told], "refused": refused}


@reported
def attack(tables: tuple[tuple[int, int], ...] = ((6, 30),), seed: int = 0) -> dict[str, Any]:
    """By sites, liars, models and limit: R² of the honest site's features before and after each
    score (told), and refusals.
    """
    found = dict[str, Any]()
    for (M, labelled), who in product(tables, ("one", "all")):
        liars = 1 if who == "one" else M - 1
        models, phi = trained(M, labelled, liars, seed)
        for (how, used), limit in product({"honest": 1, "chosen": 3}.items(), (NO_LIMIT, DEFAULT)):
            found[f"{M} sites, {who}, {how}, {limit}"] = attacked(models[:used], phi, liars, limit)
    return found
