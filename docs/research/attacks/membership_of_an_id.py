"""An outsider tests whether a person is among the shared instances, by comparing digests of
candidate sets.

The plain digest of the ordered ids confirms a guess, and so discloses the ids. With `ids_secret` in
every policy, which the coordinator does not have, the digest is keyed and confirms nothing to it.
The sites themselves share the ids.
"""

from itertools import combinations
from typing import Any

from federation import reported

from site_agent.data.ids import ids_digest, keyed

CANDIDATES = [f"patient {number}" for number in range(9)]
SHARED_IDS = [CANDIDATES[i] for i in (0, 2, 3, 5, 7)]


def guessed(digest: str) -> list[str] | None:
    """The set with that digest, found by trying all sets of five."""
    for some in combinations(CANDIDATES, 5):
        if ids_digest(some) == digest:
            return list(some)
    return None


@reported
def attack() -> dict[str, Any]:
    """Whether the coordinator finds the shared ids, from a plain digest and from a keyed one."""
    plain = ids_digest(SHARED_IDS)
    return {
        "plain": guessed(plain) == SHARED_IDS,
        "keyed": guessed(keyed(plain, "a secret of at least sixteen letters")) == SHARED_IDS,
    }
