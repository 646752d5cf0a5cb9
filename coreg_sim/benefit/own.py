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
from site_agent.data.suspects import NEARLY, copies, rank_correlation, told_copies
from site_agent.data.tables import Table, name_of, read_table

MOST_COUNTS = 30  # different values of a target that looks like a count


def _ranks(X: Float64[Arr, "n d"], y: Float64[Arr, " n"]) -> list[float]:
    """The rank correlation of each column with the target, which varies; 0 for a constant."""
    ranks = []
    for column, alike in zip(X.T, constant(X), strict=True):
        ranks.append(0.0 if alike else rank_correlation(column, y))
    return ranks


def _left_out_r2(X: Float64[Arr, "n d"], y: Float64[Arr, " n"]) -> float:
    """R² of ridge regression on rows that are left out one by one."""
    from sklearn.linear_model import RidgeCV

    mean, deviation = mean_and_deviation(X)
    target_mean, target_deviation = mean_and_deviation(y[:, None])
    target = (y - target_mean) / target_deviation
    ridge = RidgeCV(np.logspace(-3, 3, 7))
    ridge.fit((X - mean) / deviation, target)
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
        options |= views.model_dump(include={"data", "target", "separator", "decimal"})
        dates = dict[str, str]()
        categorical = list[str]()
        sites = []
        for name, its in sorted(views.sites.items()):
            dates |= its.dates
            categorical += its.categorical
            sites.append((name, its.columns))
        options |= {"dates": dates, "categorical": tuple(categorical)}
        return cls(inputs_of(options), tuple(sites))

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
        names = [name for name in table.columns if name not in (self.target, *given.drop)]
        return table.rows(rows).select(names), y[rows], len(y) - len(rows)

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
        sentences = list[str]()
        for name, rank in strongest.items():
            advice = f"add --drop {shlex.quote(name)}"
            if self.sites:
                advice = f"remove {name!r} from the columns of its site"
            if abs(rank) > NEARLY:
                sentences.append(
                    f"column {name!r} has nearly the order of the target (rank correlation"
                    f" {rank:+.2f}). Is it {asked} {advice}."
                )
        if sentences:
            return tuple(sentences)
        r2 = _left_out_r2(X, y)
        if r2 > NEARLY:
            advice = "add --drop NAME"
            if self.sites:
                advice = "remove it from the columns of its site"
            sentences.append(
                "a linear model of all columns predicts the target almost exactly"
                f" (R² {r2:.3f} on left-out rows). Is one of them {asked} {advice}."
            )
        return tuple(sentences)

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
        given = self.inputs
        dates = {name: layout for name, layout in given.dates.items() if name in features}
        preprocessing = Preprocessing.fit(
            features, categorical=given.categorical, dates=dates, scale=False
        )
        X = preprocessing.transform(features)
        sources = list[str]()
        for column in preprocessing.columns:
            sources += [column.name] * len(column.feature_names)
        sentences = [
            f"{len(y)} rows with a target; features from the columns {preprocessing.summary}"
        ]
        notes = (*features.notes, *preprocessing.notes)
        sentences += [note.removeprefix(f"{self.name}: ") for note in notes]
        if without > 0:
            sentences.append(
                f"{without} of {len(y) + without} rows have no target. In a federation they would"
                " be shared rows. Here they are left out, because errors are measured on every row."
            )
        sentences += _possible_ids(preprocessing, X)
        sentences += self._possible_count(y)
        table = self._divided(X, y, sources)
        leaks = self._leaks(X, y, sources)
        if many := copies(X, y):
            leaks = (f"{told_copies(many, len(y))}.", *leaks)
        return table, tuple(sentences), leaks

    def _of_sites(self, features: Table) -> Table:
        """The sites' columns; UsageError or BadTable names one that a site cannot have."""
        names = dict[str, None]()
        for site, columns in self.sites:
            if self.target in columns:
                raise UsageError(
                    f"{self.target!r} is the target. Remove it from the columns of {site}."
                )
            features.require(columns, f"columns of {site}")
            names |= dict.fromkeys(columns)
        return features.select(list(names))

    def _divided(self, X: Arr, y: Arr, sources: Sequence[str]) -> AttributeTable:
        """All features of one source are at one site, such as the levels of a text."""
        places = dict[str, list[int]]()
        for j, name in enumerate(sources):
            places.setdefault(name, []).append(j)
        order = list(places)
        groups = []
        for _, columns in self.sites:
            groups.append([order.index(name) for name in columns if name in order])
        blocks = [X[:, columns] for columns in places.values()]
        return table_of(blocks, y, groups)

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
