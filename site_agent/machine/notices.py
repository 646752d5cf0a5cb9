"""Notices of an agent for console and log: a name, a sentence, and fields.

And a plan as its operator reads it.
"""

from coreg_core.outcomes import Notice, Outcome, end_sentence
from coreg_core.plan import LISTED, Plan


def plan_received(plan: Plan, *, again: bool = False) -> Notice:
    """``again``: the operator has read the plan, of another attempt or before an alignment."""
    fields = {"study": plan.study, "data": plan.data, "sites": plan.sites[:LISTED]}
    work = "checking the plan"
    if plan.objective.needs == "rows":
        work += " and factoring the data"
    text = "" if again else describe_plan(plan)
    return Notice("plan", text, run=plan.run, work=work, fields=fields)


def waiting_for_approval(run: str, study: str) -> Notice:
    text = f"run {run} waits for `coreg-agent approve {run}`, or `refuse`"
    return Notice("waiting_for_approval", text, "warning", run, fields={"study": study})


def approved(run: str, study: str) -> Notice:
    return Notice("approved", f"run {run}: approved", run=run, fields={"study": study})


def asked_again(run: str, study: str) -> Notice:
    text = f"run {run}: what the operator saw has changed, so the operator is asked again"
    return Notice("asked_again", text, "warning", run, fields={"study": study})


def refused(run: str, study: str, reason: str) -> Notice:
    fields = {"study": study, "stop": "REFUSED", "reason": reason}
    return Notice(
        "refused", f"run {run}: refused: {after_refusal(reason)}", "warning", run, fields=fields
    )


def after_refusal(reason: str) -> str:
    """The reason of a refusal, and what its operator does next."""
    todo = "The run is over. After a correction ask the coordinator's operator to start it again."
    return f"{reason}{'' if reason.endswith('.') else '.'} {todo}"


def dismissed(run: str, study: str, reason: str) -> Notice:
    text = f"this site does not take part in run {run}: {reason}"
    return Notice("dismissed", text, "warning", run, fields={"study": study})


def run_over(plan: Plan | None, run: str, outcome: Outcome, reason: str, models: int) -> Notice:
    study, data = ("", "") if plan is None else (plan.study, plan.data)
    fields = {
        "study": study,
        "data": data,
        "stop": outcome.name,
        "models": models,
        "reason": reason,
    }
    return Notice("run_over", end_sentence(outcome, reason), run=run, fields=fields)


def finding(text: str) -> Notice:
    """A sentence about this site's own data or models."""
    return Notice("finding", text, private=True)


def data_read(data: str, labelled: int, shared: int, features: int) -> Notice:
    text = f"{data}: {labelled} labelled and {shared} shared instances, {features} features".lstrip(
        ": "
    )
    fields = {"data": data, "labelled": labelled, "shared": shared, "features": features}
    return Notice("data_read", text, fields=fields)


def columns_open(data: str) -> Notice:
    """Before a run: the next plan has to name columns, or this site."""
    named = f"data set {data!r}" if data else "the table"
    text = (
        f"{named}: the id column or the column to predict is not named here. Most studies name"
        " both. If a study does not, it is asked here:"
    )
    return Notice("columns_open", text, "info", fields={"data": data})


def replaced(run: str, study: str) -> Notice:
    """A coordinator with an older backup, or one that lies, repeated a run that had ended."""
    text = (
        f"run {run} of {study or 'no study'} ended here before: its files are replaced by those of"
        " another attempt at the same plan. Ask the coordinator's operator why"
    )
    return Notice("results_replaced", text, "warning", run=run)


def data_unusable(data: str) -> Notice:
    named = f"data set {data!r} cannot be used; `coreg-agent status` has the reason"
    text = named if data else "the table cannot be used:"
    return Notice("data_unusable", text, "warning", fields={"data": data})


def still_waiting(runs: tuple[str, ...], seconds: float, *, approval: bool = False) -> Notice:
    what = (
        "this site's approval (`coreg-agent pending`)"
        if approval
        else (
            "the coordinator or for other sites (its operator sees for whom: `coreg-coordinator"
            " runs`)"
        )
    )
    text = f"connected; nothing received for {seconds:.0f} s: waiting for {what}"
    return Notice("waiting", text, fields={"runs": runs, "seconds": seconds})


def draining(runs: tuple[str, ...]) -> Notice:
    """The agent ends on its operator's request."""
    text = (
        f"unfinished: run {', '.join(runs)}. It continues when the agent starts again."
        if runs
        else ""
    )
    return Notice("draining", text)


def countersigned(run: str, lines: int, doubt: str = "") -> Notice:
    text = f"the coordinator countersigned the ledger up to line {lines} (run {run})"
    if doubt:
        text += f", and warns: {doubt}. Check it with `coreg-agent ledger --verify --checkpoints`."
    return Notice(
        "countersigned", text, "warning" if doubt else "info", run, fields={"lines": lines}
    )


def not_countersigned(run: str, reason: str) -> Notice:
    text = f"{reason.rstrip('.')}. The signature of the next run covers these lines too."
    return Notice("not_countersigned", text, "warning", run)


def head_of_another_key(run: str) -> Notice:
    text = (
        "the head of a ledger that the coordinator sent is not signed by this site's key, so it "
        "was not compared with the ledger here. This is normal if the site has enrolled again"
    )
    return Notice("head_not_compared", text, "warning", run)


def describe_plan(plan: Plan) -> str:
    """The plan in one sentence: disclosure to the coordinator, method, sites."""
    gets = (
        "sums that it cannot read"
        if plan.masked
        else f"each site's answers IN THE CLEAR: {IN_THE_CLEAR}"
    )
    what = "rehearsal of the plan" if plan.rehearsal else "plan"
    return (
        f"{what} of run {plan.run}: the coordinator gets {gets}; {plan.objective.method(plan)};"
        f" sites {plan.listed_sites}"
    )


IN_THE_CLEAR = "from them it can compute this site's labels wherever it knows the rows' features"
