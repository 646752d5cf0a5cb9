"""A party that knows the probe signs of the additive objective extracts each site's directions from the sum over all sites.

Answers to probe columns are linear in a site's signs E_v: Σ L_v E_v = [L_1 … L_M] [E_1; …; E_M]. With as many probes as
there are labels, the second factor can be inverted. In early versions the signs followed from the site's name. Now they
follow from a secret of the site.
"""

from typing import Any

import numpy as np
from federation import off

from coreg_core.additive.model.terms import Additive
from coreg_core.additive.question_types import Ask, Column, Question, probe_signs
from coreg_core.additive.site import AdditiveSite

NAMES, LABELLED, SHARED = ("a", "b", "c"), 6, 40
TERMS = Additive(landmarks=10, probes=24, tuning_steps=0, targets="raw", bandwidth=2.0, ridge=0.5)


def engine(name: str, secret: bytes) -> AdditiveSite:
    """A site after the questions before the first solve."""
    rng = np.random.default_rng([9, *name.encode()])
    X, Z = rng.normal(size=(LABELLED, 2)), rng.normal(size=(SHARED, 2))
    site = AdditiveSite(X, rng.normal(size=LABELLED), Z, TERMS, name=name, probe_secret=secret)
    nothing = np.zeros((0, 0))
    score = site.answer(Question(Ask.SCORE, nothing, (Column(),), scalars=(0.0, 1.0)))
    site.answer(Question(Ask.SMOOTHER, score.vectors, (Column(),), scalars=(float(score.scalars[0]),)))
    return site


def answered(site: AdditiveSite) -> Any:
    """Answers to every probe column at the point 0."""
    columns = tuple(Column("probe", probe) for probe in range(TERMS.probes))
    return site.answer(Question(Ask.FIXED_POINT, np.zeros((2 * SHARED + 1, TERMS.probes)), columns, "affine")).vectors


def told(*, public: bool) -> float:
    """Error of b's L, for an attacker who assumes that signs follow from names."""
    sites = {name: engine(name, b"" if public else name.encode() + b" of its own") for name in NAMES}
    guessed = np.concatenate([probe_signs(LABELLED, TERMS.probes, (TERMS.seed, *name.encode())) for name in NAMES])
    total = np.sum([answered(site) for site in sites.values()], axis=0)
    found = (total @ np.linalg.pinv(guessed))[:, LABELLED : 2 * LABELLED]
    own = answered(sites["b"])
    signs = probe_signs(LABELLED, TERMS.probes, sites["b"]._probe_seed)
    return off(found, own @ np.linalg.pinv(signs))


def attack() -> dict[str, Any]:
    """Relative errors."""
    return {"signs by name": told(public=True), "signs by secret": told(public=False)}


if __name__ == "__main__":
    print(attack())  # noqa: T201
