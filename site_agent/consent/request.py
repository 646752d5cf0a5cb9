"""The question to an operator: a plan by heading, with this site's numbers."""

from coreg_core.plan import Plan
from site_agent.machine.notices import IN_THE_CLEAR

BEFORE = "before the alignment, which finds the shared ids, at most: "


def describe_request(
    plan: Plan,
    columns: str,
    shared: int,
    *,
    both: int = 0,
    given: int = 0,
    aligns: bool = False,
    warning: str = "",
) -> dict[str, str]:
    """The plan's description by heading.

    ``shared``: shared instances, or this site's ids if their alignment comes first (``aligns``,
    with a ``warning`` about them). ``both``: labelled rows that are shared too. ``given``: answers
    of earlier runs.
    """
    objective = plan.objective
    encrypted = f"readable by the coordinator: {IN_THE_CLEAR}"
    if plan.masked:
        least = plan.membership.min_sites
        encrypted = f"encrypted: the members of the run read the sums over {least} or more sites"
    so_far = f", of which earlier runs had {given}" if given else ""
    leaves = f"{objective.leaves(shared)}; {encrypted}"
    stays = "every row, label and id; the numbers that leave are computed from them"
    alignment = dict[str, str]()
    if plan.align is not None:
        stays = "every row and label; ids leave only as points that no single site can compute"
        heading, _, how = plan.align.method(plan).partition(": ")
        can = plan.align.computable(plan, both)
        told = f"{how}; leaves: {plan.align.leaves(shared)}; members can compute: {can}."
        alignment[heading] = f"{told} {warning}".rstrip()
    rehearsal = dict[str, str]()
    if plan.rehearsal:
        ends = "the run ends once every site has said whether it takes part"
        rehearsal["rehearsal"] = f"{ends}; this site gives no answer about its rows"
    numbers = plan.most_bytes(shared, plan.sites) // 8
    return {
        **rehearsal,
        "method": objective.method(plan),
        "columns": columns,
        "sites": f"{len(plan.sites)} sites: {', '.join(plan.sites)}",
        **alignment,
        "leaves this machine": f"{BEFORE}{leaves}" if aligns else leaves,
        "members can compute": objective.computable(plan, both),
        "stays on this machine": stays,
        "answers": f"at most {objective.most_answers(plan)} over all runs of this plan{so_far}; a "
        f"run usually needs {objective.usual}; at most {numbers} numbers each",
    }
