r"""One federation: every method's error on test rows, at every site, and what each site forecast from its own labels.

| method | what predicts | compared |
|---|---|---|
| alone | the site's own ridge, width and ridge by leave-one-out | the measure of all |
| agreement-0.01, -0.1, -loo, -exact | coRLSR; -loo takes each site's own λ (0 among them) | own model |
| additive-joined, -blended | private rows; blended 0.8/0.2 | own model |
| additive-common | common rows, blended | own model |
| hgb-alone, extra-trees-alone | scikit-learn's, on the site's rows and columns | own model |
| together | common rows, smoothed residuals | joint score |
| together-private, -grouped-3, -open | private rows; residuals as means over three; residuals as they are | joint score |
| mean-of-sites, best-site | of the models alone; the one of least leave-one-out error | joint score |
| pooled, hgb-pooled, extra-trees-pooled | all labelled rows and all columns in one place, which nobody may do | joint score |

"additive", "together-own-pick" and "together-else-own" are what a site's verdict makes of these (`outcome`), without
training. Errors are mean squares, in the target's variance. A site without labels stands beside the federation's mean
label.
"""

import itertools
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from coreg_core.additive.model.grouping import ResidualPolicy
from coreg_core.additive.model.local_fit import LEAST_LABELS
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_types import Operator
from coreg_core.additive.reference.dense_training import DenseRun, forecast_dense, train_dense
from coreg_core.additive.site import AdditiveSite
from coreg_core.errors import UsageError
from coreg_core.evaluation.intervals import least_rows, own_factor
from coreg_core.evaluation.losses import Paired
from coreg_core.evaluation.recommendation import judge
from coreg_core.numerics.arrays import Arr, Ints
from coreg_sim.benefit.agreement import COUPLINGS, Part, agree
from coreg_sim.benefit.partition import Dealt
from coreg_sim.federation.jobs import JSON

COVERAGES = (0.8, 0.9)
# Everything pooled has more rows and columns than a site, and gets more landmarks for them.
POOLED_LANDMARKS = 150
_EVERYTHING = ResidualPolicy(grouped_at_least=3, open_residuals=True)


def cell(dealt: Dealt, seed: int, *, trees: bool = True) -> dict[str, JSON]:
    """Everything that one federation tells, as JSON.

    Parameters
    ----------
    dealt
        the federation.
    seed
        of landmarks, probes, folds and trees.
    trees
        also what scikit-learn's trees make of it.
    """
    federation = _Federation(dealt, seed)
    methods = federation.methods()
    if trees:
        methods |= _trees(dealt, seed)
    return {"alone": federation.alone, "methods": methods, "sites": federation.told}


class _Federation:
    """The trainings of one cell."""

    def __init__(self, dealt: Dealt, seed: int):
        self.dealt, self.seed = dealt, seed
        everyone = np.concatenate(dealt.labels)
        self.mean = float(everyone.mean())
        self.told: list[dict[str, JSON]] = [
            {"labels": len(y), "judged": honest} for y, honest in zip(dealt.labels, dealt.honest, strict=True)
        ]
        self.private, self.private_run = self._train(Additive(seed=seed))
        self.alone_predictions = [
            site.model.alone.predict(X[dealt.test])
            if site.model and site.model.alone
            else np.full(len(dealt.test), self.mean)
            for site, X in zip(self.private, dealt.columns, strict=True)
        ]
        self.alone = [self._mse(each) for each in self.alone_predictions]
        self.labelled_sites = [v for v, y in enumerate(dealt.labels) if len(y) >= LEAST_LABELS]

    def _mse(self, predictions: Float64[Arr, " t"]) -> float:
        return float(np.mean((self.dealt.y_test - predictions) ** 2))

    def _train(self, terms: Additive) -> tuple[list[AdditiveSite], DenseRun]:
        dealt, shared, where = self.dealt, self.dealt.shared, None
        if terms.rows == "common":
            shared, where = _common_rows(dealt)
        sites = [
            AdditiveSite(
                X[rows], y, X[shared], terms, name=f"site{v}",
                positions=None if where is None else where[v], policy=_EVERYTHING,
            )
            for v, (X, rows, y) in enumerate(zip(dealt.columns, dealt.labelled, dealt.labels, strict=True))
        ]  # fmt: skip
        return sites, train_dense(terms, sites, len(shared))

    def _joint(self, sites: list[AdditiveSite]) -> Float64[Arr, " t"]:
        test = self.dealt.test
        parts = [s.model.part.predict(X[test]) for s, X in zip(sites, self.dealt.columns, strict=True) if s.model]
        assert sites[0].model is not None
        joint: Arr = sites[0].model.intercept + np.sum(parts, axis=0)
        return joint

    def methods(self) -> dict[str, list[float]]:
        """Mean squared errors, one a site (a joint score has the same at each)."""
        M = len(self.dealt.columns)
        out = {**self._agreement(), **self._own_models(), **self._common()}
        labelled = self.labelled_sites
        errors = {v: fit.error for v in labelled if (fit := self.private[v].own_fit) is not None}
        best = min(errors, key=errors.__getitem__)
        mean = np.mean([self.alone_predictions[v] for v in labelled], axis=0)
        out["mean-of-sites"] = [self._mse(mean)] * M
        out["best-site"] = [self.alone[best]] * M
        out["together-private"] = [self._mse(self._joint(self.private))] * M
        out["pooled"] = [self._pooled()] * M
        return out

    def _agreement(self) -> dict[str, list[float]]:
        dealt, parts = self.dealt, []
        for X, site in zip(dealt.columns, self.private, strict=True):
            own = site.own_fit
            candidate = site.candidates[own.candidate if own else len(site.candidates) - 1]
            test = candidate.features(site.standardiser(X[dealt.test]))
            # A site without labels has nothing of its own to be smooth by: ν = 1.
            ridge = own.ridge if own else 1.0
            parts.append(Part(candidate.labelled, candidate.shared, test, site.labels - self.mean, ridge))
        path = agree(parts)
        out: dict[str, list[float]] = {}
        for name, at in (("agreement-0.01", 0.01), ("agreement-0.1", 0.1)):
            out[name] = [self._mse(self.mean + test[COUPLINGS.index(at)]) for test in path.test]
        for name, chosen in (("agreement-loo", path.chosen), ("agreement-exact", path.chosen_exactly)):
            # λ = 0 is the model alone itself, whose intercept is free and not hardly penalised.
            out[name] = [
                self._mse(self.mean + test[j]) if j else alone
                for test, j, alone in zip(path.test, chosen, self.alone, strict=True)
            ]
        for told, j, beside in zip(self.told, path.chosen, path.beside, strict=True):
            told |= {"coupling": None if j is None else COUPLINGS[j], "agreement": _told(beside)}
        return out

    def _own_models(self) -> dict[str, list[float]]:
        dealt = self.dealt
        gain = forecast_dense(self.private[0].terms, self.private, self.private_run)
        out: dict[str, list[float]] = {"additive-joined": [], "additive-blended": []}
        for told, X, site in zip(self.told, dealt.columns, self.private, strict=True):
            assert site.model is not None
            own = site.model.own.predict(X[dealt.test])
            out["additive-joined"].append(self._mse(site.model.joined.predict(X[dealt.test])))
            out["additive-blended"].append(self._mse(own))
            told |= {
                "r2": site.smoother.r2 if site.smoother else None,
                "federation": gain if np.isfinite(gain) else None,
                "own": _told(judge(site.left_out, site.n_labelled).joined_beside),
                "coverage": self._coverage(site, own, X),
            }
        return out

    def _coverage(self, site: AdditiveSite, own: Float64[Arr, " t"], X: Float64[Arr, "N d"]) -> dict[str, JSON]:
        """How many test labels lie in the interval, and how wide it is, in the target's deviations."""
        found, out = site.left_out, {}
        for coverage in COVERAGES:
            if found is not None and len(found.rows) >= least_rows(coverage):
                half = own_factor(found, coverage) * site.spread(Operator(), self.private_run.step).deviations(
                    X[self.dealt.test]
                )
                out[f"{coverage:g}"] = [
                    float(np.mean(np.abs(self.dealt.y_test - own) <= half)),
                    float(2.0 * half.mean()),
                ]
        return out

    def _common(self) -> dict[str, list[float]]:
        terms, M = Additive(rows="common", seed=self.seed), len(self.dealt.columns)
        sites, run = self._train(terms)
        forecast_dense(terms, sites, run)
        joint, own = self._mse(self._joint(sites)), []
        for told, X, site in zip(self.told, self.dealt.columns, sites, strict=True):
            assert site.model is not None
            own.append(self._mse(site.model.own.predict(X[self.dealt.test])))
            verdict = judge(site.left_out, site.n_labelled)
            told |= {"common": _told(verdict.joined_beside), "together": _told(verdict.together_beside)}
        out = {"additive-common": own, "together": [joint] * M}
        for name, residuals in (("together-open", "open"), ("together-grouped-3", "grouped")):
            if residuals == "grouped" and any(0 < len(y) < terms.group_size for y in self.dealt.labels):
                continue  # no group of three
            out[name] = [self._mse(self._joint(self._train(replace(terms, residuals=residuals))[0]))] * M  # type: ignore[arg-type]
        return out

    def _pooled(self) -> float:
        """One site with every column: kernel ridge by the same rule as each site alone."""
        X, rows, y, _ = _pooled_rows(self.dealt)
        terms = Additive(seed=self.seed, landmarks=POOLED_LANDMARKS, tuning_steps=0)
        site = AdditiveSite(X[rows], y, X[self.dealt.shared], terms, name="pooled", policy=_EVERYTHING)
        train_dense(terms, [site], len(self.dealt.shared))
        assert site.model is not None
        assert site.model.alone is not None
        return self._mse(site.model.alone.predict(X[self.dealt.test]))


def _told(beside: Paired | None) -> dict[str, JSON] | None:
    """What folds said, as JSON, which has no NaN; None where they said nothing."""
    if beside is None or not np.isfinite([beside.difference, beside.standard_error, beside.change]).all():
        return None
    return asdict(beside)


def _common_rows(dealt: Dealt) -> tuple[Ints, list[Ints]]:
    """The shared instances with all labelled rows among them, each once; where each site's stand."""
    labelled = np.unique(np.concatenate(dealt.labelled))
    shared = np.concatenate([dealt.shared, labelled])
    return shared, [len(dealt.shared) + np.searchsorted(labelled, rows) for rows in dealt.labelled]


def _pooled_rows(dealt: Dealt) -> tuple[Arr, Ints, Arr, list[slice]]:
    """(all columns, labelled rows, labels, where each site's stand): a row that several sites have stands once."""
    X = np.concatenate(dealt.columns, axis=1)
    _, first = np.unique(X, axis=1, return_index=True)  # columns that several sites have count once
    rows, labels = np.concatenate(dealt.labelled), np.concatenate(dealt.labels)
    kept = np.sort(np.unique(rows, return_index=True)[1])
    ends = np.cumsum([0, *map(len, dealt.labels)]).tolist()
    return (
        X[:, np.sort(first)],
        rows[kept],
        labels[kept],
        [slice(a, b) for a, b in itertools.pairwise(ends)],
    )


def _trees(dealt: Dealt, seed: int) -> dict[str, list[float]]:
    """Boosted and extremely randomised trees, at each site alone and pooled; a site without labels stays without."""
    out: dict[str, list[float]] = {}
    X, rows, y, _ = _pooled_rows(dealt)
    mean = float(np.concatenate(dealt.labels).mean())
    for name in ("hgb", "extra-trees"):

        def error(A: Arr, at: Ints, labels: Arr, name: str = name) -> float:
            predicted = (
                _fitted(name, A[at], labels, seed).predict(A[dealt.test])
                if len(labels) >= LEAST_LABELS
                else np.full(len(dealt.test), mean)
            )
            return float(np.mean((dealt.y_test - predicted) ** 2))

        out[f"{name}-alone"] = [
            error(A, at, labels) for A, at, labels in zip(dealt.columns, dealt.labelled, dealt.labels, strict=True)
        ]
        out[f"{name}-pooled"] = [error(X, rows, y)] * len(dealt.columns)
    return out


def _fitted(name: str, X: Arr, y: Arr, seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor

    if name == "hgb":
        # scikit-learn's 20 rows a leaf would leave most sites a constant.
        leaf = int(np.clip(len(y) // 10, 2, 20))
        return HistGradientBoostingRegressor(min_samples_leaf=leaf, early_stopping=False, random_state=seed).fit(X, y)
    if name == "extra-trees":
        return ExtraTreesRegressor(n_estimators=100, random_state=seed, n_jobs=1).fit(X, y)
    raise UsageError(f"{name!r} is no such method.")
