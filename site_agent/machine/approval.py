"""A plan as its operator reads it before the approval: method, disclosures, number of answers, time, deadline."""

from dataclasses import dataclass

from coreg_core.protocol.plan import Additive, Agreement, Alignment, Plan, Scoring
from site_agent.machine.notices import IN_THE_CLEAR

MANY = 100  # answers, beside which a run's some dozens are worth a word
FLOPS = 5e9  # of one core, in dense linear algebra: the low end of today's machines


@dataclass(frozen=True)
class Request:
    """A plan with this site's numbers.

    Parameters
    ----------
    plan
        the plan.
    shared, labelled
        this site's shared instances and labelled rows.
    answers
        the maximum number of this site's answers to the plan.
    both
        labelled rows that are shared too.
    given
        answers to this plan on these instances so far, over all runs.
    """

    plan: Plan
    shared: int
    labelled: int
    answers: int
    both: int = 0
    given: int = 0


def describe_request(request: Request) -> dict[str, str]:
    """The plan's description by heading, without the headings that have no known value."""
    plan = request.plan
    others = f"{len(plan.sites)} sites: {', '.join(plan.sites)}"
    told = {
        "method": _method(plan),
        "sites": others,
        "leaves this machine": _leaves(request),
        "members can compute": _computable(request),
        "stays on this machine": "every row, label and id; the numbers that leave are computed from them",
        "answers": _answers(request),
    }
    seconds = _seconds(request)
    if seconds is not None:
        told["computing time"] = (
            f"about {seconds / 60:.0f} min" if seconds >= 120 else f"about {max(1.0, seconds):.0f} s"
        )
        told["computing time"] += " on one core, without waiting for other sites"
    return told


def _answers(request: Request) -> str:
    usual = "4, or 5 with private rows" if isinstance(request.plan.objective, Additive) else "some dozens"
    needs = f"; a run usually needs {usual}" * (request.answers >= MANY)
    so_far = f", of which earlier runs had {request.given}" * bool(request.given)
    return (
        f"at most {request.answers} over all runs of this plan{so_far}{needs}; at most {_numbers(request)} numbers each"
    )


def _method(plan: Plan) -> str:
    match plan.objective:
        case Agreement() as terms:
            couplings = ", ".join(f"{c:g}" for c in terms.coupling)
            return (
                "agreement (co-regularised least squares): each site keeps its own model, and a penalty pulls the models' "
                f"predictions on the shared instances together; {terms.form} form, {terms.kernel} kernel, coupling {couplings}"
            )
        case Additive() as terms:
            return (
                "additive model: the score of an instance is the sum of one part of each site, from second moments of all sites' "
                f"features; {terms.kernel} kernel, noise {terms.noise:g}, label noise {terms.label_noise:g}"
            )
        case Alignment() as terms:
            return (
                "alignment of ids: each site learns which of its own ids all sites have, and how many sites have each. At most "
                f"{terms.max_ids} ids at each site, normalised by the rule {terms.ids!r}"
            )
        case Scoring() as terms:
            receivers = ", ".join(terms.receivers) or "every site"
            return f"scoring with the models of run {terms.of_run}; {receivers} receives the scores"


def _leaves(request: Request) -> str:
    plan, beside = request.plan, ""
    match plan.objective:
        case Additive():
            what = "second moments of this site's features and labels, with noise"
            beside = (
                "; to the members: which of these instances it has labels of, level and deviation of these labels; to each other "
                "site alone: parts of the score at that site's labelled instances"
            )
        case Agreement():
            what = "this site's predictions for the shared instances"
            beside = "; also the number of its labels and the size of its label column"
        case Alignment():
            return (
                "this site's ids as points that no single site can compute, and a part of an encrypted tally of all ids"
            )
        case _:
            what = "this site's part of each score"
    count = f" ({request.shared} instances)" * bool(request.shared)
    if not plan.masked:
        return f"{what}{count}{beside}; readable by the coordinator: {IN_THE_CLEAR}"
    return (
        f"{what}{count}{beside}. All of it is encrypted, and computed from labels too: the members of the run read the sums over "
        f"{plan.membership.min_sites} or more sites"
    )


def _computable(request: Request) -> str:
    """What the plan's sums allow a member to derive; the policy decides whether this site takes part."""
    match request.plan.objective:
        case Alignment():
            return "how many sites have each id that they list themselves"
        case Additive():
            return (
                f"which instances this site has labels of ({request.both}); a part of each label and row; one that lies, or all "
                "others together, much of the rows and the noisy labels (docs/concepts/threat-model.md)"
            )
        case Scoring():
            return "the sum of the parts, which is the score"
        case Agreement() as terms:
            beside = "; about as well as the joined scores predict them: the labels of"
            span = "; whether a guessed column is a combination of all sites' columns, because the kernel is linear"
            return (
                _separable(request.plan, terms)
                + span * ("linear" in (terms.form, terms.kernel))
                + f"{beside} {request.both} labelled individuals that are shared" * bool(request.both)
            )


def _separable(plan: Plan, terms: Agreement) -> str:
    """Whether sums can be separated into sites: docs/concepts/threat-model.md, "Members of an agreement"."""
    causes = [
        cause
        for holds, cause in (
            (plan.membership.min_sites < 3, "sums over two sites"),
            (plan.privacy.membership_changes, "sums over several sets of sites"),
            (len(terms.coupling) > 1, "a path of couplings"),
            (plan.iteration.name == "block-coordinate-descent", "Algorithm 1"),
        )
        if holds
    ]
    if causes:
        return f"this site's predictions for the shared instances ({', '.join(causes)})"
    return (
        "the sums; by algebra, nothing of a single site, unless another run with other terms, rows or labels sums the same "
        "instances"
    )


def _numbers(request: Request) -> int:
    match request.plan.objective:
        case Agreement(coupling=coupling):
            return request.shared * len(coupling)
        case Additive():
            return request.plan.most_words(request.shared)
        case Scoring():
            return request.shared
        case Alignment(max_ids=most):
            return most


def _seconds(request: Request) -> float | None:
    """The Cholesky factor of the exact form, p³/3 operations for each coupling with p = n + m; None for other forms."""
    terms, p = request.plan.objective, request.labelled + request.shared
    if not isinstance(terms, Agreement) or terms.form != "exact" or not request.shared:
        return None
    return (
        len(terms.coupling) * (p**3 / 3 + 2.0 * p**2 * min(request.answers, request.plan.iteration.max_rounds)) / FLOPS
    )
