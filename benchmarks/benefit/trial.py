r"""One federation: the error of each method on test rows at each site, and each site's forecasts from its own labels.

| method | predictor | compared with alone |
|---|---|---|
| alone | the site's own Gaussian kernel ridge, width and ridge by leave-one-out | the baseline |
| agreement-0.01, -0.1, -loo, -exact | coRLSR; -loo with each site's own choice of λ (0 included) | own model |
| additive-joined, -blended | private rows; blended with the model alone by the site's labels | own model |
| additive-common | common rows, blended | own model |
| ridge-alone | scikit-learn's RidgeCV (linear) on the site's rows and standardised columns | own model |
| hgb-alone, extra-trees-alone | scikit-learn's trees, on the site's rows and columns (first draw only) | own model |
| together | common rows, smoothed residuals | joint score |
| together-private, -grouped-3, -open | private rows; residuals as means of three; open residuals | joint score |
| distilled | the pooled model's predictions of the shared rows, learnt from the site's own columns | own model, a limit |
| mean-of-labels | the mean of the site's own labels; of the federation's where it has none | own model |
| mean-of-sites, best-site | mean of the models alone; the one with the least leave-one-out error | joint score |
| pooled, ridge-, hgb-, extra-trees-pooled | all labelled rows and columns in one place, for reference | joint score |

`summary` derives "additive", "together-own-pick" and "together-else-own" from these and the sites' verdicts. Errors are mean
squares, in units of the target's variance. A site without labels is compared with the federation's mean label.
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from jaxtyping import Float64

from benchmarks.benefit import yes_no
from benchmarks.benefit.agreement import COUPLINGS, SiteFeatures, agree
from benchmarks.benefit.partition import Partition
from benchmarks.benefit.summary import choice_of
from benchmarks.papers.jobs import JSON
from coreg_core.additive.model.local_fit import LEAST_LABELS
from coreg_core.additive.model.smoother import choose_smoother
from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_types import Operator
from coreg_core.additive.reference.dense_training import forecast_dense
from coreg_core.evaluation.intervals import least_rows, own_factor
from coreg_core.evaluation.losses import Paired
from coreg_core.evaluation.recommendation import Choice, judge
from coreg_core.numerics.arrays import Arr, Ints
from coreg_sim.benefit.trial import Federation, pooled_rows

COVERAGES = (0.8, 0.9)


def trial(partition: Partition, seed: int, *, trees: bool = True) -> dict[str, JSON]:
    """All results of one federation, as JSON. The seed is for landmarks, probes, folds and trees."""
    federation = StudiedFederation(partition, seed)
    methods = federation.methods()
    if partition.yes_no:
        federation.judge_probabilities()
    methods |= _peers(partition, seed, trees=trees)
    return {"alone": federation.alone, "methods": methods, "sites": federation.record}


class StudiedFederation(Federation):
    """The trainings of one federation, with each site's record."""

    partition: Partition

    def __init__(self, partition: Partition, seed: int):
        super().__init__(partition, seed)
        self.record: list[dict[str, JSON]] = [
            {"labels": len(y), "judged": honest, "shared": len(partition.shared)}
            for y, honest in zip(partition.labels, partition.honest, strict=True)
        ]
        self.labelled_sites = [v for v, y in enumerate(partition.labels) if len(y) >= LEAST_LABELS]

    def under(self, terms: Additive) -> tuple[list[float], list[float]]:
        """Mean squared errors under other terms: of each site's own model, and of its joint score."""
        sites, _ = self.train(replace(terms, seed=self.seed))
        return self.errors(self.own(sites)), self.errors(self.joint(sites))

    def methods(self) -> dict[str, list[float]]:
        """Mean squared errors of each method, one for each site."""
        M = len(self.partition.columns)
        out = {**self._agreement(), **self._own_models(), **self._common()}
        labelled = self.labelled_sites
        errors = {v: fit.error for v in labelled if (fit := self.private[v].own_fit) is not None}
        best = min(errors, key=errors.__getitem__)
        mean = np.mean([self.alone_predictions[v] for v in labelled], axis=0)
        means = [float(y.mean()) if len(y) else self.mean for y in self.partition.labels]
        out["distilled"] = self._distilled()
        out["mean-of-labels"] = self.errors(np.tile(np.array(means)[:, None], len(self.partition.test)))
        out["mean-of-sites"] = self.errors([mean] * M)
        out["best-site"] = self.errors([self.alone_predictions[best]] * M)
        out["together-private"] = self.errors(self.joint(self.private))
        out["pooled"] = self.errors([self.pooled] * M)
        return out

    def _distilled(self) -> list[float]:
        """How well each site's own columns can learn the pooled model: a limit for what joining can be expected to reach."""
        teacher, X = self.pooled_site.model, pooled_rows(self.partition)[0]
        assert teacher is not None
        assert teacher.alone is not None
        scores, test, out = teacher.alone.predict(X[self.partition.shared]), self.partition.test, []
        for site, columns in zip(self.private, self.partition.columns, strict=True):
            learnt = choose_smoother(site.candidates, scores)
            chosen = site.candidates[learnt.candidate]
            own = chosen.features(site.standardiser(columns[test])) @ learnt.coefficients(chosen, scores)
            out.append(scores.mean() + own)
        return self.errors(out)

    def _agreement(self) -> dict[str, list[float]]:
        partition, parts = self.partition, []
        for X, site in zip(partition.columns, self.private, strict=True):
            own = site.own_fit
            candidate = site.candidates[own.candidate if own else len(site.candidates) - 1]
            test = candidate.features(site.standardiser(X[partition.test]))
            # A site without labels cannot choose its smoothness, so ν = 1.
            ridge = own.ridge if own else 1.0
            parts.append(SiteFeatures(candidate.labelled, candidate.shared, test, site.labels - self.mean, ridge))
        path = agree(parts)
        out: dict[str, list[float]] = {}
        for name, at in (("agreement-0.01", 0.01), ("agreement-0.1", 0.1)):
            out[name] = self.errors([self.mean + test[COUPLINGS.index(at)] for test in path.test])
        for name, chosen in (("agreement-loo", path.chosen), ("agreement-exact", path.chosen_exactly)):
            # For λ = 0 take the model alone, because its intercept has no penalty.
            predictions = [
                self.mean + test[j] if j else alone
                for test, j, alone in zip(path.test, chosen, self.alone_predictions, strict=True)
            ]
            out[name] = self.errors(predictions)
        for record, j, beside in zip(self.record, path.chosen, path.beside, strict=True):
            record |= {"coupling": None if j is None else COUPLINGS[j], "agreement": _to_json(beside)}
        return out

    def _own_models(self) -> dict[str, list[float]]:
        partition = self.partition
        gain = forecast_dense(self.private[0].terms, self.private, self.private_run)
        joined, blended = [], []
        for v, (record, X, site) in enumerate(zip(self.record, partition.columns, self.private, strict=True)):
            assert site.model is not None
            joined.append(site.model.joined.predict(X[partition.test]))
            blended.append(site.model.own.predict(X[partition.test]))
            record |= {
                "r2": site.smoother.r2 if site.smoother else None,
                "federation": gain if np.isfinite(gain) else None,
                "own": _to_json(judge(site.left_out, site.n_labelled).joined_beside),
                "coverage": self._coverage(v, blended[-1]),
            }
            record["warned"] = {"opposed": site.model.blend.opposed, "unexplained": site.model.blend.unexplained}
        return {"additive-joined": self.errors(joined), "additive-blended": self.errors(blended)}

    def _coverage(self, v: int, own: Float64[Arr, " t"]) -> dict[str, JSON]:
        """The share of test labels in the interval, and its mean width in units of the target's deviation."""
        site, X = self.private[v], self.partition.columns[v]
        found, out = site.left_out, {}
        for coverage in COVERAGES:
            if found is not None and len(found.rows) >= least_rows(coverage):
                half = own_factor(found, coverage) * site.spread(Operator(), self.private_run.step).deviations(
                    X[self.partition.test]
                )
                out[f"{coverage:g}"] = [
                    float(np.mean(np.abs(self.partition.y_test[v] - own) <= half)),
                    float(2.0 * half.mean()),
                ]
        return out

    def _common(self) -> dict[str, list[float]]:
        sites, terms = self.common, self.common[0].terms
        for record, site in zip(self.record, sites, strict=True):
            verdict = judge(site.left_out, site.n_labelled)
            record |= {"common": _to_json(verdict.joined_beside), "together": _to_json(verdict.together_beside)}
        out = {"additive-common": self.errors(self.own(sites)), "together": self.errors(self.joint(sites))}
        for name, residuals in (("together-open", "open"), ("together-grouped-3", "grouped")):
            if residuals == "grouped" and any(0 < len(y) < terms.group_size for y in self.partition.labels):
                continue  # no group of three
            out[name] = self.errors(self.joint(self.train(replace(terms, residuals=residuals))[0]))  # type: ignore[arg-type]
        return out

    def judge_probabilities(self) -> None:
        """Probabilities by each method, in the sites' records."""
        pooled = self.pooled_site.model
        assert pooled is not None
        test, joint, common = self.partition.test, self.joint(self.private), self.joint(self.common)
        logistic = self._pooled_logistic()
        for v, (record, X, site) in enumerate(zip(self.record, self.partition.columns, self.private, strict=True)):
            assert site.model is not None
            rows, y, truth = self.partition.labelled[v], self.partition.labels[v], self.partition.y_test[v]
            own, alone = site.model.left_out
            local, of_common = yes_no.figures(self.alone_predictions[v], alone, y, truth), self.common[v].model
            assert of_common is not None
            checked = choice_of(record) is Choice.TOGETHER
            record["positive"] = float(truth.mean())
            record["yes_no"] = {
                "logistic regression alone": yes_no.logistic(X[rows], y, X[test], truth),
                "local model": local,
                "joined model": yes_no.figures(site.model.own.predict(X[test]), own, y, truth),
                "scored together": yes_no.figures(joint[v], own, y, truth),
                "checked scores": yes_no.figures(common[v], of_common.left_out[0], y, truth) if checked else local,
                "pooled": yes_no.figures(self.pooled, pooled.left_out[1], self.pooled_site.labels, truth),
                "pooled, logistic loss": logistic,
            }

    def _pooled_logistic(self) -> list[float]:
        """On the features of `pooled`: whether another loss than the squared one would pay."""
        site, X = self.pooled_site, pooled_rows(self.partition)[0]
        assert site.own_fit is not None
        chosen = site.candidates[site.own_fit.candidate]
        test = chosen.features(site.standardiser(X[self.partition.test]))
        return yes_no.logistic_of(chosen.labelled, site.labels, test, self.partition.y_test[0])


def _to_json(beside: Paired | None) -> dict[str, JSON] | None:
    """A comparison by folds as JSON; None without one, because JSON has no NaN."""
    if beside is None or not np.isfinite([beside.difference, beside.standard_error, beside.change]).all():
        return None
    return asdict(beside)


def _peers(partition: Partition, seed: int, *, trees: bool) -> dict[str, list[float]]:
    """Errors of scikit-learn's models, at each site alone and pooled; mean label for a site without labels."""
    from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def ridge(_n: int) -> Any:
        return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-2.0, 4.0, 13)))

    def boosted(n: int) -> Any:
        leaf = int(np.clip(n // 10, 2, 20))  # with scikit-learn's 20 rows per leaf most sites would predict a constant
        return HistGradientBoostingRegressor(min_samples_leaf=leaf, early_stopping=False, random_state=seed)

    def errors(make: Callable[[int], Any], X: Arr, rows: Ints, y: Arr) -> Float64[Arr, " M"]:
        """On the test labels of each site."""
        enough = len(y) >= LEAST_LABELS
        predicted = make(len(y)).fit(X[rows], y).predict(X[partition.test]) if enough else mean
        found: Arr = np.mean((partition.y_test - predicted) ** 2, axis=1)
        return found

    mean, out = float(np.concatenate(partition.labels).mean()), {}
    extra = lambda _n: ExtraTreesRegressor(n_estimators=100, random_state=seed, n_jobs=1)  # noqa: E731
    for name, make in (("ridge", ridge), *((("hgb", boosted), ("extra-trees", extra)) if trees else ())):
        sites = zip(partition.columns, partition.labelled, partition.labels, strict=True)
        out[f"{name}-alone"] = [float(errors(make, *site)[v]) for v, site in enumerate(sites)]
        out[f"{name}-pooled"] = errors(make, *pooled_rows(partition)).tolist()
    return out
