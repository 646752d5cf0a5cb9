r"""A site's part in one run, as a frozen value: begun by a plan, changed by each question, over with `Finished`.

Nothing is answered that the plan's schedule would not ask; a repeated question gets the same answer, and another question
under an old number is refused. The end is held to the plan as well: a model is an answer to the targets of one of the last
two questions that could become the result, at the very weights that they were asked with.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from coreg_core.agreement.columns import Column
from coreg_core.agreement.objective import stays, sweep_weight
from coreg_core.agreement.question_rules import RelativeTo, question_fault, weight_of
from coreg_core.agreement.schedules.schedule import column_norms
from coreg_core.agreement.views import Part, Solution, View
from coreg_core.agreement.views.left_out import LabelledFit, PathChoice, choose_on
from coreg_core.errors import BadData, CoregError, Refused
from coreg_core.numerics.arrays import Arr
from coreg_core.protocol.messages import Ask, Fault, Finished, Inquiry, Masked, PlanAccepted, Prediction
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Agreement, Plan
from coreg_core.protocol.vectors import Vector
from site_agent.machine.factoring import FACTOR_MEMORY, data_digest, factor, units
from site_agent.machine.leverage import share_of_one_label
from site_agent.machine.masks import NO_KEYS, Masks, Offer, in_the_clear, masked, reach_of, scale_fault
from site_agent.machine.memory import Remembered, SiteResult, Verified
from site_agent.machine.site_data import PrivateData

# With fewer labels there is nothing to leave out: every member of the path is kept, and none is chosen.
LEAST_TO_CHOOSE = 3


@dataclass(frozen=True)
class Training:
    """See the module's docstring. ``last`` is the last question and its answer: only that one can be repeated whole.

    ``stated`` are b_v, ‖y_v‖² and ρ_v², which go out with the acceptance, or masked with every answer; ``masks`` those of the
    roster that came last.
    """

    plan: Plan
    data: PrivateData
    view: View
    acceptance: PlanAccepted
    shift: float
    divisor: float
    most: int
    remembered: Remembered
    stated: tuple[float, float, float]
    label_share_max: float = 1.0
    masks: Masks | None = None
    last: tuple[Ask, Prediction | Masked] | None = None
    faults: int = 0
    result: SiteResult | None = None

    @property
    def over(self) -> bool:
        """The run has ended for this site."""
        return self.result is not None

    def under(self, masks: Masks) -> "Training":
        return replace(self, masks=masks)

    def answer(self, ask: Ask | Inquiry) -> tuple["Training", Prediction | Masked | Fault]:
        """The answer to one question, or why there is none."""
        if isinstance(ask, Ask):
            return answer(self, ask)
        reason = "nothing that the plan's objective asks: a question of the additive one."
        return replace(self, faults=self.faults + 1), Fault(ask.run, ask.question, ask.attempt, reason)

    def finish(self, finished: Finished) -> tuple["Training", str | None]:
        """The site's models, or what the plan does not allow about this end (a breach of protocol)."""
        return finish(self, finished)


def begin(
    plan: Plan,
    objective: Agreement,
    data: PrivateData,
    pin_threads: Callable[[int], int],
    remembered: Remembered,
    most: int,
    factor_memory: float = FACTOR_MEMORY,
    offer: Offer = NO_KEYS,
    label_share_max: float = 1.0,
) -> Training:
    """Factor the site's data under the plan, and see that no sum would be one label.

    Raises
    ------
    CoregError
        these rows do not allow it; the message is what the coordinator hears, so it names no datum.
    """
    threads = pin_threads(plan.iteration.threads)
    m = len(data.Z)
    if len(data.y) == 0:
        raise BadData(
            "a site without labelled rows has no prediction of its own to agree on; the additive objective takes it."
        )
    shift, divisor = units(data.y, objective.label_units)
    y = (data.y - shift) / divisor
    try:
        with np.errstate(all="ignore"):  # what overflows is said below, in words
            view = factor(objective, data, y, factor_memory)
            bound, norm = view.bound(plan.privacy.bound), float(y @ y)
            alone = view.respond(np.zeros((m, 1)), np.zeros(1))
            strongest = weight_of("consensus", max(_couplings(plan, data)), len(plan.sites))
            rounding = view.response_error(strongest)
            if plan.masked and label_share_max < 1.0:
                weights = [weight_of(plan.iteration.name, c, len(plan.sites)) for c in _couplings(plan, data)]
                share = share_of_one_label(view, data, weights, plan.membership.min_sites)
                if share > label_share_max:
                    raise Refused(too_much_of_one_label(label_share_max))
    except MemoryError:
        raise BadData(f"not enough memory to factor form={objective.form!r} with {m} unlabelled instances.") from None
    except CoregError:
        raise
    except (np.linalg.LinAlgError, ValueError, OverflowError) as error:
        raise BadData(f"these rows cannot be factored under kernel={objective.kernel!r} ({error}).") from None
    if not (np.isfinite([bound, norm, rounding]).all() and np.isfinite(alone).all()):
        raise BadData(f"kernel={objective.kernel!r} overflows on these rows. Scale the features, or lower the degree.")
    digest = data_digest(data, plan.run)
    told = (0.0, 0.0, 0.0) if plan.masked else (bound, norm, rounding)
    count = len(data.y) if objective.relative else 0
    accepted = PlanAccepted(
        plan.run,
        plan.digest,
        m,
        data.ids_digest,
        digest,
        *told[:2],
        threads,
        told[2],
        count,
        _reach(plan, alone, bound, norm),
        offer.key,
        offer.signature,
        offer.identity,
    )
    return Training(
        plan, data, view, accepted, shift, divisor, most, remembered, (bound, norm, rounding**2), label_share_max
    )


def _couplings(plan: Plan, data: PrivateData) -> tuple[float, ...]:
    """λ; relative ones as if every site had as many labels; the coordinator, who hears of all, scales them."""
    assert isinstance(plan.objective, Agreement)
    return plan.objective.couplings(len(data.y) * len(plan.sites), len(plan.sites), max(len(data.Z), 1))


def too_much_of_one_label(most: float) -> str:
    """Without the figure, which is of this site's rows."""
    return (
        f"against this site's policy: at some shared instance the sum of all sites' answers would be one label of this site by "
        f"more than label_share_max={most:g} of its variance, and no mask hides that. A smaller coupling, a wider kernel or a "
        "larger ridge make it less; so does a list of shared instances without this site's labelled ones. Or its operator "
        "consents by that key of policy.toml."
    )


def _reach(plan: Plan, alone: Arr, bound: float, norm: float) -> int:
    r"""p, a multiple of four: every label-bearing answer at target 0 is below 2ᵖ.

    ‖respond(0, μ)‖ ≤ min(√b ‖y‖, ‖y‖/(2√μ)), since each of its coordinates is s β/(1 + μs²), ‖β‖ ≤ ‖y‖ and s² ≤ b; at μ = 0
    they are the predictions alone.
    """
    # Relative couplings are not known yet: √b ‖y‖ bounds them at any weight.
    relative = isinstance(plan.objective, Agreement) and plan.objective.relative
    least = float(np.finfo(float).tiny) if relative else 1.0
    weights = [least * weight_of(plan.iteration.name, lam, plan.membership.min_sites) for lam in plan.couplings]
    coupled = [mu for mu in weights if mu > 0.0]
    most = float(np.abs(alone).max(initial=0.0)) if len(coupled) < len(weights) else 0.0
    for mu in coupled:
        most = max(most, float(np.sqrt(norm)) * min(float(np.sqrt(bound)), 0.5 / float(np.sqrt(mu))))
    return reach_of(most)


# --- questions ----------------------------------------------------------------------------------------------------


def answer(training: Training, ask: Ask) -> tuple[Training, Prediction | Masked | Fault]:
    """The answer to one question, or why there is none."""
    number = (ask.question, ask.attempt)
    if (reason := _unanswerable(training, ask)) is not None:
        return replace(training, faults=training.faults + 1), Fault(ask.run, *number, reason)
    if training.last is not None and training.last[0] == ask:
        return _counted(training, ask, training.last[1])
    try:
        with np.errstate(all="ignore"):
            values = training.view.respond(ask.targets.values, ask.weights, ask.part)
    except CoregError as error:
        return training, Fault(ask.run, *number, str(error))
    except np.linalg.LinAlgError as error:
        return training, Fault(ask.run, *number, f"cannot be computed ({error}).")
    except MemoryError:
        rows = len(training.data.Z)
        return training, Fault(ask.run, *number, f"not enough memory to answer with {rows} unlabelled instances.")
    if not np.isfinite(values).all():
        reason = "its own answer is not finite: features or label column are too large for this kernel. Scale them."
        return training, Fault(ask.run, *number, reason)
    told: Prediction | Masked
    try:
        if training.masks is not None and training.plan.masked:
            scalars = (*training.stated, *stays(training.stated[0], ask.weights.tolist()))
            told = masked(training.masks, ask, question_digest(ask), values, scalars)
        else:
            told = Prediction(ask.run, *number, Vector(in_the_clear(values, ask)))
    except BadData as error:
        return training, Fault(ask.run, *number, f"its own answer cannot be summed: {error}")
    return _counted(training, ask, told)


def _counted(training: Training, ask: Ask, told: Prediction | Masked) -> tuple[Training, Prediction | Masked]:
    verified = Verified(ask.targets.digest, ask.columns) if ask.is_candidate else None
    participants = () if training.masks is None else training.masks.roster.sites
    number, may_change = (ask.question, ask.attempt), training.plan.privacy.membership_changes
    remembered = training.remembered.after(
        number, question_digest(ask), verified, participants=participants, may_change=may_change
    )
    return replace(training, remembered=remembered, last=(ask, told)), told


def question_digest(ask: Ask) -> str:
    return digest_of(ask.part, ask.targets.digest, ask.columns)


def digest_of(part: Part, targets: str, columns: tuple[Column, ...]) -> str:
    """What tells a question from another under the same number: its part, its columns and their weights, its targets' digest."""
    weights = ",".join(f"{column.coupling!r}*{column.weight!r}" for column in columns)
    return f"{part}:{weights}:{targets}"


def _unanswerable(training: Training, ask: Ask) -> str | None:
    plan, terms = training.plan, training.plan.membership
    if training.over:
        return "the run is over for this site."
    expected = (len(training.data.Z), len(plan.couplings))
    if ask.targets.shape != expected or len(ask.columns) != expected[1]:
        return f"targets of shape {ask.targets.shape} with {len(ask.columns)} columns, expected {expected}."
    if not ask.targets.finite:
        return "targets that are not finite."
    number = (ask.question, ask.attempt)
    asked = training.remembered.asked
    if number in asked:  # the same again: a coordinator whose power failed may ask its last questions anew
        if asked[number] != question_digest(ask):
            return "the same question number came with another target, or other weights; only the first was answered."
    elif asked and number < max(asked):
        return f"question {ask.question} is older than the last answered, {max(asked)[0]}."
    last = None if training.last is None else training.last[0]
    if last is not None and last.attempt == ask.attempt and last.columns != ask.columns:
        return "other weights than before in the same attempt, so another membership under its number."
    n_views = range(terms.min_sites, len(terms.sites) + 1)
    if plan.masked:
        if training.masks is None or training.masks.roster.attempt != ask.attempt:
            return f"no roster of attempt {ask.attempt} came before it, so nobody's masks would cancel."
        n_views = range(len(training.masks.roster.participants), len(training.masks.roster.participants) + 1)
    columns, targets = ask.columns, ask.targets.values
    objective = plan.objective
    relative = (
        RelativeTo(len(training.data.Z), len(training.data.y))
        if isinstance(objective, Agreement) and objective.relative
        else None
    )
    if reason := question_fault(plan.iteration.name, plan.couplings, n_views, ask.part, columns, targets, relative):
        return f"nothing that the plan's schedule asks: {reason}"
    if (plan.masked or ask.exponents) and (reason := _scaled_beyond(training, ask)) is not None:
        return reason
    if plan.masked and relative is not None and ask.part == "affine" and training.label_share_max < 1.0:
        # How strong relative couplings are, the coordinator says with its first question alone.
        n_sites = len(training.masks.roster.participants) if training.masks is not None else terms.min_sites
        share = share_of_one_label(training.view, training.data, ask.weights.tolist(), n_sites)
        if share > training.label_share_max:
            return too_much_of_one_label(training.label_share_max)
    if training.remembered.answered >= training.most:
        return (
            f"more than {training.most} questions, the most that this agent answers to a plan of "
            f"max_rounds={plan.iteration.max_rounds} on these instances, over all runs; its ledger counts them. "
            "Its operator may allow more (max_questions in policy.toml)."
        )
    return None


def _scaled_beyond(training: Training, ask: Ask) -> str | None:
    own = 2.0**training.acceptance.reach if ask.part == "affine" else 0.0
    bounds = [0.5 * own + norm for norm in column_norms(ask.targets.values).tolist()]
    n_sites = 1 if training.masks is None else len(training.masks.roster.participants)
    return scale_fault(ask.exponents, bounds, n_sites)


# --- the end ------------------------------------------------------------------------------------------------------


def finish(training: Training, finished: Finished) -> tuple[Training, str | None]:
    """The site's models, or what the plan does not allow about this end (a breach of protocol)."""
    if (reason := _not_by_the_plan(training, finished)) is not None:
        return training, reason
    solutions: tuple[Solution, ...] = ()
    if finished.targets is not None:
        targets = finished.targets.values
        solutions = tuple(
            training.view.solve(np.ascontiguousarray(targets[:, j]), column.weight)
            for j, column in enumerate(finished.columns)
        )
    alone = training.view.solve(np.zeros(len(training.data.Z)), 0.0)
    choice = _own_choice(training, finished, solutions)
    result = SiteResult(
        finished.outcome,
        finished.reason,
        training.plan,
        solutions,
        alone,
        training.shift,
        training.divisor,
        couplings=tuple(column.coupling for column in finished.columns),
        choice=choice,
    )
    return replace(training, result=result), None


def _own_choice(training: Training, finished: Finished, solutions: tuple[Solution, ...]) -> PathChoice | None:
    """Which member of the path this site's own labels are for; None where there is no path, or too few labels to say.

    Each is seen as the answer to the *others'* mean at 2λ(M−1), which it is as well: the mean of all has the site's own
    prediction in it, and with it the label that is left out.
    """
    objective, y = training.plan.objective, (training.data.y - training.shift) / training.divisor
    if finished.targets is None or len(finished.columns) < 2 or len(y) < LEAST_TO_CHOOSE:
        return None
    assert isinstance(objective, Agreement)
    targets = finished.targets.values
    sweeps = training.plan.iteration.name == "block-coordinate-descent"  # whose targets are the others' mean already
    fits = []
    with np.errstate(all="ignore"):
        for j, (column, solution) in enumerate(zip(finished.columns, solutions, strict=True)):
            t, mu = targets[:, j], column.weight
            if mu > 0.0 and not sweeps:
                M = round(mu / (2.0 * column.coupling))
                t, mu = (M * t - solution.prediction) / (M - 1), sweep_weight(column.coupling, M)
            r, G = training.view.on_labels(np.ascontiguousarray(t), mu)
            fits.append(LabelledFit(r, G, y, objective.label_units != "raw"))
        choice = choose_on(fits)
    return choice if all(np.isfinite(errors).all() for errors in choice.left_out) else None


def _not_by_the_plan(training: Training, finished: Finished) -> str | None:
    verified = training.remembered.verified
    if finished.targets is None:
        if finished.outcome is Outcome.CONVERGED and verified:
            return "a run that converged without a model for a site that answered its questions."
        return None
    found = Verified(finished.targets.digest, finished.columns)
    if found in verified:
        return None
    if not training.remembered.asked:
        return "a model, although no question was answered (or the ledger that tells of it is gone)."
    return "a model to targets or weights that are not those of the last verified question."
