"""A plan as its operator reads it before the approval: method, sites, disclosures, number of answers."""

from coreg_core.protocol.plan import Plan

IN_THE_CLEAR = "from them it can compute this site's labels wherever it knows the rows' features"


def describe_request(
    plan: Plan, columns: str, shared: int, both: int = 0, given: int = 0, warning: str = ""
) -> dict[str, str]:
    """The plan's description by heading, with this site's numbers.

    Parameters
    ----------
    shared
        instances.
    both
        labelled rows that are shared too.
    given
        answers to this plan on these instances so far, over all runs.
    """
    objective = plan.objective
    encrypted = (
        f"encrypted: the members of the run read the sums over {plan.membership.min_sites} or more sites"
        if plan.masked
        else f"readable by the coordinator: {IN_THE_CLEAR}"
    )
    so_far = f", of which earlier runs had {given}" * bool(given)
    stays, aligns = "every row, label and id; the numbers that leave are computed from them", {}
    if plan.align is not None:
        stays = "every row and label; ids leave only as points that no single site can compute"
        told = f"{plan.align.method(plan)}; leaves: {plan.align.leaves(shared)}; members can compute: "
        aligns = {"ids, unless aligned": f"{told}{plan.align.computable(plan, both)}. {warning}".rstrip()}
    return {
        "method": objective.method(plan),
        "columns": columns,
        "sites": f"{len(plan.sites)} sites: {', '.join(plan.sites)}",
        **aligns,
        "leaves this machine": f"{objective.leaves(shared)}; {encrypted}",
        "members can compute": objective.computable(plan, both),
        "stays on this machine": stays,
        "answers": f"at most {objective.most_answers(plan)} over all runs of this plan{so_far}; a run usually needs "
        f"{objective.usual}; at most {objective.most_numbers(shared)} numbers each",
    }
