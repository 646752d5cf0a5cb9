"""What is said to the site's operator of a message that came: a line each."""

from coreg_core.protocol.messages import Finished, ToSite
from coreg_core.protocol.outcomes import told
from coreg_core.protocol.plan import Additive, Agreement, Plan, Scoring

IN_THE_CLEAR = "from them it can compute this site's labels wherever it knows the rows' features"


def _objective(plan: Plan) -> str:
    match plan.objective:
        case Agreement() as terms:
            couplings = ", ".join(f"{c:g}" for c in plan.couplings)
            rounds = f"{plan.iteration.name}, at most {plan.iteration.max_rounds} rounds"
            if plan.iteration.wire != "float64":
                rounds += f", search directions in {plan.iteration.wire}"
            return f"{terms.form}, {terms.kernel} kernel, coupling {couplings}, {rounds}"
        case Additive() as terms:
            return (
                f"additive objective, {terms.kernel} kernel, {terms.rows} rows, {terms.residuals} residuals, "
                f"{terms.tuning_steps} tuning steps, at most {terms.max_rounds} rounds a solve"
            )
        case Scoring() as terms:
            receivers = ", ".join(terms.receivers) or "every site"
            return f"scoring together with the models of run {terms.of_run} ({terms.trained}), scores to {receivers}"


def describe(message: ToSite) -> str | None:
    """A line for the operator, where a message deserves one."""
    match message:
        case Plan():
            gets = "sums alone" if message.masked else f"each site's answers IN THE CLEAR: {IN_THE_CLEAR}"
            sites = ", ".join(message.sites)
            return f"plan of run {message.run}: the coordinator gets {gets}; {_objective(message)}, sites {sites}"
        case Finished():
            return told(message.outcome, message.reason)
        case _:
            return None
