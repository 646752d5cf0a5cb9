"""k of M members combine their knowledge: they have the sum of the other M − k, and a single other
site's answers exactly.

If at least two sites remain, and there is one operator, the colluding members cannot separate them.
One member that helps the coordinator discloses all sums to it. No key prevents this: choose the
members with care.
"""

from federation import SITES, VICTIM, member_operator, off, plan_of, reported, truth, watched


def with_colluding(k: int) -> float:
    """Relative error of b's operator: the sum minus the k colluders' operators, divided evenly
    among the rest.
    """
    plan = plan_of("secure")
    colluding = [name for name in SITES if name != VICTIM][:k]
    left = member_operator(watched(plan)) - sum(truth(name, plan) for name in colluding)
    return off(left / (len(SITES) - k), truth(VICTIM, plan))


@reported
def attack() -> dict[str, float]:
    """Relative error of one site's operator, by the number of colluding members of four: 0 is
    disclosed, 1 is a guess of zero.
    """
    return {str(k): with_colluding(k) for k in range(1, len(SITES))}
