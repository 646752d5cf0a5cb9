"""k of M members put together what they know: they have the sum of the other M − k, and of one that is all of it.

With M − k of at least two and one operator they cannot tell these apart. One member that helps the coordinator discloses all
sums to it. No key helps against that; whom to join with is the operator's choice.
"""

from federation import SITES, VICTIM, member_operator, off, plan_of, truth, watched


def with_colluding(k: int) -> float:
    """Relative error of b's operator by what is left when the k others' are taken away, shared out evenly."""
    plan = plan_of("secure")
    colluding = [name for name in SITES if name != VICTIM][:k]
    left = member_operator(watched(plan)) - sum(truth(name, plan) for name in colluding)
    return off(left / (len(SITES) - k), truth(VICTIM, plan))


def attack() -> dict[str, float]:
    """The error, by how many collude."""
    return {str(k): with_colluding(k) for k in range(1, len(SITES))}


if __name__ == "__main__":
    print(attack())  # noqa: T201
