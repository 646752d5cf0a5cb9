"""A member with two operators on the same instances derives each site's operator from the sums;
with one operator it cannot.

Σ R_v(μ₁) and Σ R_v(μ₂) are diagonalised together, and each common eigenvector belongs to one site.
In plaintext the coordinator has the answers and needs no attack. Under the seal its words, and
their sum, look random. A member gets two operators from a path of couplings, or from two studies
with other terms. The default policy accepts both. For one operator, `alternative` makes other sites
with the same transcript.
"""

from typing import Any

import numpy as np
from federation import (
    COUPLING,
    FEATURES,
    SITES,
    VICTIM,
    linear,
    member_operator,
    off,
    operator,
    plan_of,
    reported,
    truth,
    watched,
)
from scipy.linalg import eigh, expm

PATH = (COUPLING, 0.05)
WEAK = 0.002  # at which no eigenvalue is near 1, so that there is room for a rotation


def components(first: Any, second: Any, rank: int) -> Any:
    """Columns v with first = Σ v vᵀ, each of one site alone where the pencil has simple
    eigenvalues.
    """
    U = np.linalg.eigh(first)[1][:, -rank:]
    _, W = eigh(U.T @ second @ U, U.T @ first @ U)
    return U @ np.linalg.inv(W).T


def of_the_victim(parts: Any, R: Any) -> float:
    """Error of the best combination of these components; the attacker is given the right choice."""
    basis = np.linalg.eigh(R)[1][:, -FEATURES:]
    share = np.sum((basis.T @ parts) ** 2, axis=0) / np.sum(parts**2, axis=0)
    own = parts[:, np.argsort(share)[-FEATURES:]]
    return off(own @ own.T, R)


def of_any_size(found: Any, R: Any) -> float:
    """Error of the best multiple: words under a seal have no size that means anything."""
    return off(found * (np.sum(found * R) / np.sum(found**2)), R)


def by_the_coordinator(aggregation: Any) -> float:
    """Error of R_b, from b's answers in an honest run."""
    seen = watched(plan_of(aggregation))
    R = truth(VICTIM, plan_of("plaintext"))
    numbers, P = linear(seen)
    return of_any_size(
        operator(P, np.stack([seen.words(i)[VICTIM][:, 0] for i in numbers], axis=1)), R
    )


def by_the_sealed_sum() -> float:
    """Error of ΣR, from the sum of all words that the coordinator adds up."""
    seen = watched(plan_of("secure"))
    plan = plan_of("plaintext")
    numbers, P = linear(seen)
    sums = [np.sum([values[:, 0] for values in seen.words(i).values()], axis=0) for i in numbers]
    return of_any_size(
        operator(P, np.stack(sums, axis=1)), sum(truth(name, plan) for name in SITES)
    )


def by_a_member(couplings: tuple[float, ...]) -> float:
    """Error of R_b from the sums of an honest run."""
    seen = watched(plan_of("secure", coupling=couplings))
    R = truth(VICTIM, plan_of("plaintext"))
    first = member_operator(seen)
    second = member_operator(seen, 1) if len(couplings) > 1 else first + 1e-9 * np.eye(len(first))
    return of_the_victim(components(first, second, FEATURES * len(SITES)), R)


def alternative() -> dict[str, float]:
    """Other sites, far from the true ones, that would have answered every question of a run with
    the same sums.
    """
    plan = plan_of("secure", coupling=(WEAK,))
    seen = watched(plan)
    rank = FEATURES * len(SITES)
    own = [truth(name, plan, WEAK) for name in SITES]
    G = sum(own)
    values, U = np.linalg.eigh(G)
    U = U[:, -rank:]
    values = values[-rank:]
    root = U @ np.diag(np.sqrt(values)) @ U.T
    unroot = U @ np.diag(1 / np.sqrt(values)) @ U.T
    K = np.random.default_rng(0).normal(size=(rank, rank))
    Q = U @ expm(0.2 * (K - K.T)) @ U.T
    others = [root @ Q @ (unroot @ R @ unroot) @ Q.T @ root for R in own]
    b = next(total[:, 0] for asked, total in seen.rounds if asked.part == "affine")
    numbers, P = linear(seen)
    sums = np.stack([seen.rounds[i][1][:, 0] for i in numbers], axis=1)
    means = [R @ np.linalg.pinv(sum(others), rcond=1e-10) @ b for R in others]
    return {
        "transcript": max(off(sum(others) @ P, sums), off(sum(means), b)),
        "largest eigenvalue": max(float(np.linalg.eigvalsh((R + R.T) / 2).max()) for R in others),
        "distance of R_b": off(others[SITES.index(VICTIM)], own[SITES.index(VICTIM)]),
    }


@reported
def attack() -> dict[str, Any]:
    """Relative errors of what is reconstructed: 0 is disclosed, 1 is as a guess of zero."""
    return {
        "coordinator, plaintext": by_the_coordinator("plaintext"),
        "coordinator, sealed": by_the_coordinator("secure"),
        "coordinator, sealed sum": by_the_sealed_sum(),
        "member, two operators": by_a_member(PATH),
        "member, one operator": by_a_member(PATH[:1]),
        "alternative": alternative(),
    }
