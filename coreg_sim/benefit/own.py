"""A table of the user's own, read as an agent reads it: every notation of numbers, dates, texts and
empty cells.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from coreg_core.arrays import Arr
from coreg_core.errors import BadData, UsageError
from coreg_core.spread import constant, mean_and_deviation
from coreg_sim.benefit.partition import AttributeTable, table_of
from coreg_sim.problems import read_views
from site_agent.config.settings import inputs_of
from site_agent.data.inputs import Inputs
from site_agent.data.preprocessing import Preprocessing
from site_agent.data.suspects import NEARLY, rank_correlation
from site_agent.data.tables import Table, name_of, read_table

MOST_COUNTS = 30  # different values of a target that looks like a count


def _ranks(X: Float64[Arr, "n d"], y: Float64[Arr, " n"]) -> list[float]:
    """The rank correlation of each column with the target, which varies; 0 for a constant."""
    alike = constant(X)
    return [0.0 if alike[j] else rank_correlation(column, y) for j, column in enumerate(X.T)]


def _left_out_r2(X: Float64[Arr, "n d"], y: Float64[Arr, " n"]) -> float:
    """R² of ridge regression on rows that are left out one by one."""
    from sklearn.linear_model import RidgeCV

    mean, deviation = mean_and_deviation(X)
    target_mean, target_deviation = mean_and_deviation(y[:, None])
    target = (y - target_mean) / target_deviation
    ridge = RidgeCV(np.logspace(-3, 3, 7)).fit((X - mean) / deviation, target)
    return 1.0 + float(ridge.best_score_)


@dataclass(frozen=True)
class OwnTable:
    """A table, how to read it, and with ``sites`` each site's name and columns."""

    inputs: Inputs
    sites: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def divided(cls, path: Path, **options: Any) -> "OwnTable":
        """By a views.toml (`coreg_sim.problems`), with the options that it does not have."""
        views = read_views(path)
        if len(views.sites) < 2:
            raise UsageError(
                f"{path}: one site has no other to join. Add a second section [sites.NAME]."
            )
        named = sorted(views.sites.items())
        dates = {name: layout for _, its in named for name, layout in its.dates.items()}
        options |= views.model_dump(include={"data", "target", "separator", "decimal"})
        options["dates"] = dates
        options["categorical"] = tuple(name for _, its in named for name in its.categorical)
        return cls(inputs_of(options), tuple((name, its.columns) for name, its in named))

    @property
    def name(self) -> str:
        return name_of(self.inputs.table)

    @property
    def target(self) -> str:
        assert self.inputs.target is not None
        return self.inputs.target

    def _labelled(self) -> tuple[Table, Arr, int]:
        """Features and target of the rows that have a target, and how many have none; BadTable
        names a wrong column.
        """
        given = self.inputs
        table = read_table(given.table, na_values=given.na_values, notation=given.notation)
        table.require([self.target], "the target")
        if self.target in given.drop:
            raise UsageError(f"{self.target!r} is both the target and a column to drop.")
        table.require(given.drop, "to be dropped")
        table.require(list(given.dates), "to be read as dates")
        table.require(given.categorical, "to be read as texts")
        y = table.with_classes(self.target, given.positive).numbers(self.target, target=True)
        rows = np.flatnonzero(~np.isnan(y))
        if len(rows) and constant(y[rows, None])[0]:
            raise BadData(
                f"{self.name}: the target {self.target!r} has one value, {y[rows[0]]:g}. There is"
                " nothing to predict."
            )
        features = table.rows(rows).select(
            [n for n in table.columns if n not in (self.target, *given.drop)]
        )
        return features, y[rows], len(y) - len(rows)

    def _leaks(
        self, X: Float64[Arr, "n d"], y: Float64[Arr, " n"], sources: Sequence[str]
    ) -> tuple[str, ...]:
        """Sentences about a column, or all of them together, that predict the target almost
        exactly.
        """
        asked = "known only after the target, or computed from it? Then"
        strongest = dict[str, float]()
        for name, rank in zip(sources, _ranks(X, y), strict=True):
            strongest[name] = max(strongest.get(name, 0.0), rank, key=abs)
        sentences = tuple(
            f"column {name!r} has nearly the order of the target (rank correlation {rank:+.2f}). Is"
            f" it {asked} "
            + (
                f"remove {name!r} from the columns of its site."
                if self.sites
                else f"add --drop {shlex.quote(name)}."
            )
            for name, rank in strongest.items()
            if abs(rank) > NEARLY
        )
        if not sentences and (r2 := _left_out_r2(X, y)) > NEARLY:
            advice = "add --drop NAME"
            if self.sites:
                advice = "remove it from the columns of its site"
            sentences = (
                "a linear model of all columns predicts the target almost exactly"
                f" (R² {r2:.3f} on left-out rows). Is one of them {asked} {advice}.",
            )
        return sentences

    def read(self) -> tuple[AttributeTable, tuple[str, ...], tuple[str, ...]]:
        """The table, sentences about columns that a user may not want, and those about columns that
        can be the target itself.
        """
        features, y, without = self._labelled()
        if self.sites:
            features = self._of_sites(features)
        if not len(y) or not features.columns:
            raise UsageError(
                f"{self.name}: {len(y)} rows with a {self.target!r}, and {len(features.columns)}"
                " features. A study needs rows with a target, and features beside it."
            )
        dates = {
            name: layout for name, layout in self.inputs.dates.items() if name in features.columns
        }
        preprocessing = Preprocessing.fit(
            features, categorical=self.inputs.categorical, dates=dates, scale=False
        )
        X = preprocessing.transform(features)
        sources = [column.name for column in preprocessing.columns for _ in column.feature_names]
        unlabelled = list[str]()
        if without > 0:
            unlabelled.append(
                f"{without} of {len(y) + without} rows have no target. In a federation they would"
                " be shared rows. Here they are left out, because errors are measured on every row."
            )
        notes = (*features.notes, *preprocessing.notes)
        warnings = (
            f"{len(y)} rows with a target; features from the columns {preprocessing.summary}",
            *(text.removeprefix(f"{self.name}: ") for text in notes),
            *unlabelled,
            *_possible_ids(preprocessing, X),
            *self._possible_count(y),
        )
        return self._divided(X, y, sources), warnings, self._leaks(X, y, sources)

    def _of_sites(self, features: Table) -> Table:
        """The sites' columns; UsageError or BadTable names one that a site cannot have."""
        for site, columns in self.sites:
            if self.target in columns:
                raise UsageError(
                    f"{self.target!r} is the target. Remove it from the columns of {site}."
                )
            features.require(columns, f"columns of {site}")
        every = dict.fromkeys(name for _, columns in self.sites for name in columns)
        return features.select(list(every))

    def _divided(self, X: Arr, y: Arr, sources: Sequence[str]) -> AttributeTable:
        """All features of one source are at one site, such as the levels of a text."""
        places = dict[str, list[int]]()
        for j, name in enumerate(sources):
            places.setdefault(name, []).append(j)
        order = list(places)
        groups = [
            [order.index(name) for name in columns if name in order] for _, columns in self.sites
        ]
        return table_of([X[:, columns] for columns in places.values()], y, groups)

    def _possible_count(self, y: Arr) -> Iterator[str]:
        values = np.unique(y)
        few = 2 < len(values) <= MOST_COUNTS
        if few and values[0] == 0.0 and (values == np.rint(values)).all():
            yield (
                f"the target {self.target!r} looks like a count (0 to {values[-1]:.0f}). There"
                " is no Poisson loss or exposure here (docs/concepts/comparison.md); whether"
                " there is an event (yes/no) fits."
            )


def _possible_ids(preprocessing: Preprocessing, X: Arr) -> Iterator[str]:
    dates = {column.name for column in preprocessing.columns if column.kind == "date"}
    for name, values in zip(preprocessing.feature_names, X.T, strict=True):
        whole = (values == np.rint(values)).all()
        if name not in dates and whole and len(np.unique(values)) == len(values):
            yield (
                f"column {name!r} has a different whole number in every row. Add --drop {name} if"
                " it is an id."
            )
