"""The most questions of one run that a site answers, and their weights."""

from coreg_core.agreement.objective import consensus_weight, sweep_weight


def weight_of(name: str, coupling: float, n_views: int) -> float:
    """μ at which the schedule of that name asks a column of coupling λ, where M sites take part."""
    weight = sweep_weight if name == "block-coordinate-descent" else consensus_weight
    return weight(coupling, n_views)


def max_questions(max_rounds: int) -> int:
    """Twice the questions of an undisturbed run: one a round and two before, and as many again for lost ones."""
    return 2 * (max_rounds + 2)
