"""The question to an operator: a plan by heading, with this site's numbers."""

from coreg_core.plan import Plan
from site_agent.machine.notices import IN_THE_CLEAR

BEFORE = "before the alignment, which finds the shared ids, at most: "


def describe_request(
    plan: Plan,
    columns: str,
    shared: int,
    *,
    labelled_and_shared: int = 0,
    earlier_answers: int = 0,
    id_warning: str | None = None,
) -> dict[str, str]:
    """The plan's description by heading.

    ``shared``: shared instances, or this site's ids if their alignment comes first. ``id_warning``
    is about such ids, "" where none is due, None where no alignment comes first. Answers of earlier
    runs on these instances count.
    """
    objective = plan.objective
    encrypted = f"readable by the coordinator: {IN_THE_CLEAR}"
    if plan.masked:
        least = plan.membership.min_sites
        encrypted = f"encrypted: the members of the run read the sums over {least} or more sites"
    leaves = f"{objective.leaves(shared)}; {encrypted}"
    so_far = f", of which earlier runs had {earlier_answers}" if earlier_answers else ""
    about = dict[str, str]()
    if plan.rehearsal:
        ends = "the run ends once every site has said whether it takes part"
        about["rehearsal"] = f"{ends}; this site gives no answer about its rows"
    about["method"] = objective.method(plan)
    about["columns"] = columns
    about["sites"] = f"{len(plan.sites)} sites: {plan.listed_sites}"
    stays = "every row, label and id; the numbers that leave are computed from them"
    if plan.align is not None:
        stays = "every row and label; ids leave only as points that no single site can compute"
        heading, _, how = plan.align.method(plan).partition(": ")
        can = plan.align.computable(plan, labelled_and_shared)
        text = f"{how}; leaves: {plan.align.leaves(shared)}; members can compute: {can}."
        about[heading] = f"{text} {id_warning or ''}".rstrip()
    about["leaves this machine"] = leaves if id_warning is None else f"{BEFORE}{leaves}"
    about["members can compute"] = objective.computable(plan, labelled_and_shared)
    about["stays on this machine"] = stays
    numbers = plan.most_bytes(shared, plan.sites) // 8
    about["answers"] = (
        f"at most {plan.most_answers} over all runs of this plan{so_far}; a run usually needs"
        f" {objective.usual}; at most {numbers} numbers each"
    )
    return about
