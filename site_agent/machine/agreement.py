r"""A site's part in a run of the agreement: sizes first, then respond(t, μ) of its view, and its models at the end."""

from collections.abc import Callable

import numpy as np

from coreg_core.agreement.objective import powered, stays, sweep_weight, weight_of
from coreg_core.agreement.schedules.schedule import FinalTargets
from coreg_core.agreement.views import Solution, View
from coreg_core.agreement.views.left_out import LabelledFit, PathChoice, choose_on
from coreg_core.computation.agreement import AgreementComputation, AgreementState
from coreg_core.computation.question import Question
from coreg_core.errors import BadData, CoregError, Refused
from coreg_core.kernels.leave_one_out import some_rows
from coreg_core.numerics.arrays import Arr
from coreg_core.objectives.agreement import Agreement
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from site_agent.machine.factoring import data_digest, factor, many_labels, units
from site_agent.machine.leverage import LABEL_SHARE_MAX, share_of_one_label
from site_agent.machine.memory import SiteResult
from site_agent.site_data import PrivateData

# Leave-one-out needs as many labels; with fewer, all members of the path are kept and none is chosen.
LEAST_TO_CHOOSE = 3
SMALLEST_LABEL = 2.0**-400  # squares of larger labels, and of their rounding, are normal numbers
_NONE = np.zeros((0, 0))


class TooMuchOfOneLabel(Refused):
    """Masks cannot hide a label. The text leaves the site; ``here`` is for its operator alone, because it depends on the rows."""

    def __init__(self, share: float, most: float):
        super().__init__(
            f"at some shared instance, one label of this site would make up more than {most:g} of the variance of the "
            "sum, which masks cannot hide. Use a smaller coupling, a wider kernel, a larger ridge, or shared instances other "
            "than this site's labelled rows."
        )
        self.here = f"here the largest share of one label would be {share:.2g}"


class AgreementJob:
    """`site_agent.machine.sums.Summand`: factors the site's data under the plan.

    Raises
    ------
    CoregError
        these rows do not allow the plan. The coordinator receives the message, so it names no datum.
    """

    def __init__(
        self,
        plan: Plan,
        objective: Agreement,
        data: PrivateData,
        pin_threads: Callable[[int], int],
        *,
        label_share_max: float = LABEL_SHARE_MAX,
    ):
        pin_threads(plan.iteration.threads)
        self.plan, self.objective, self.data = plan, objective, data
        self.data_digest, self.ids_digest = data_digest(data, plan.run), data.ids_digest
        if data.positive:
            raise BadData(
                "this site declares a yes/no target (positive). Use the additive objective with task = classification."
            )
        self.n_unlabelled = m = data.n_shared
        self._n_sites = len(plan.sites)
        if len(data.y) == 0:
            raise BadData(
                "the agreement objective needs labelled rows, and this site has none. Use the additive objective."
            )
        self.shift, self.divisor = units(data.y, objective.label_units)
        self._y = (data.y - self.shift) / self.divisor
        largest = float(np.abs(self._y).max())
        if 0.0 < largest < SMALLEST_LABEL:
            raise BadData("the squares of the labels are too small for float64. Scale the labels by a power of ten.")
        try:
            with np.errstate(all="ignore"):  # an overflow raises BadData below
                self.view: View = factor(objective, data, self._y)
                self._bound, self._norm = self.view.bound("tight"), float(self._y @ self._y)
                alone = self.view.respond(np.zeros((m, 1)), np.zeros(1))
        except MemoryError:
            raise BadData(
                f'not enough memory to factor form = "{objective.form}" with {m} unlabelled instances.'
            ) from None
        except CoregError:
            raise
        except (np.linalg.LinAlgError, ValueError, OverflowError) as error:
            raise BadData(f'these rows cannot be factored under kernel = "{objective.kernel}" ({error}).') from None
        if not (np.isfinite([self._bound, self._norm]).all() and np.isfinite(alone).all()):
            raise BadData(f'kernel = "{objective.kernel}" overflows on these rows. Scale the features.')
        self._require_hidden_labels(label_share_max)

    def begin(self, sites: tuple[str, ...], key: bytes) -> None:  # noqa: ARG002
        self._n_sites = len(sites)

    def computation(self, n_sites: int) -> AgreementComputation:
        """Of a membership."""
        return AgreementComputation(self.objective, self.plan.iteration, n_sites, self.n_unlabelled)

    def answer(self, asked: Question) -> tuple[Arr, tuple[float, ...]]:
        """See `Summand.answer`."""
        weights = np.array([column.weight for column in asked.columns])
        match asked.kind:
            case "sizes":
                kept = stays(self._bound, weights.tolist())
                return _NONE, (powered(self._bound), self._norm, float(len(self._y)), *kept)
            case _:
                try:
                    with np.errstate(all="ignore"):
                        values: Arr = self.view.respond(asked.targets, weights, asked.part)
                except np.linalg.LinAlgError as error:
                    raise BadData(f"cannot be computed ({error}).") from None
                except MemoryError:
                    raise BadData(f"not enough memory to answer with {self.n_unlabelled} instances.") from None
                if not np.isfinite(values).all():
                    raise BadData(
                        "its own answer is not finite: features or label column are too large for this kernel. Scale them."
                    )
                return values, ()

    def _require_hidden_labels(self, most: float) -> None:
        """Check the share of one label in the smallest sums that the plan allows."""
        if self.plan.masked:
            weights = [weight_of(self.plan.iteration.name, c, self._n_sites) for c in self.objective.coupling]
            share = share_of_one_label(self.view, self.data, weights, self.plan.membership.min_sites)
            if share > most:
                raise TooMuchOfOneLabel(share, most)

    # --- the end --------------------------------------------------------------------------------------------------

    def result(
        self,
        computation: AgreementComputation,
        state: AgreementState,
        position: int,
        outcome: Outcome,
        reason: str,
    ) -> SiteResult:
        """The site's models, one for each column, if a round was verified; ``position``: this site's, in site order."""
        models = computation.models(state)
        solutions, couplings, choice = tuple[Solution, ...](), tuple[float, ...](), None
        if models is not None:
            targets = models.of(position)
            couplings = tuple(column.coupling for column in computation.columns(state))
            solutions = tuple(
                self.view.solve(np.ascontiguousarray(targets[:, j]), float(weight))
                for j, weight in enumerate(models.weights)
            )
            choice = self._own_choice(models, targets, couplings, solutions)
        alone = self.view.solve(np.zeros(self.n_unlabelled), 0.0)
        units = (self.shift, self.divisor)
        told = many_labels(self.objective, len(self._y))
        findings = (f"{told[0].upper()}{told[1:]}.",) if told else ()
        return SiteResult(
            outcome, reason, self.plan, solutions, alone, *units, couplings=couplings, choice=choice, findings=findings
        )

    def _own_choice(
        self, models: FinalTargets, targets: Arr, couplings: tuple[float, ...], solutions: tuple[Solution, ...]
    ) -> PathChoice | None:
        """The member of the path with the least left-out error on this site's labels; None without a path or with few labels.

        Leave-one-out takes each member as the answer to the *others'* mean at 2λ(M−1), which is the same function. The mean
        over all sites would contain the site's own prediction, and with it the label that is left out.
        """
        if len(couplings) < 2 or len(self._y) < LEAST_TO_CHOOSE:
            return None
        sweeps = self.plan.iteration.name == "block-coordinate-descent"  # whose targets are the others' mean already
        fits, rows = [], some_rows(len(self._y))
        # Of some rows alone, the shift stays that of all: one label moves it by 1/n.
        centred = len(rows) == len(self._y)
        with np.errstate(all="ignore"):
            for j, (coupling, solution) in enumerate(zip(couplings, solutions, strict=True)):
                t, mu, M = targets[:, j], float(models.weights[j]), self._n_sites
                if mu > 0.0 and not sweeps:
                    t, mu = (M * t - solution.prediction) / (M - 1), sweep_weight(coupling, M)
                r, G = self.view.on_labels(np.ascontiguousarray(t), mu, rows)
                fits.append(LabelledFit(r, G, self._y[rows], centred))
            choice = choose_on(fits)
        return choice if all(np.isfinite(errors).all() for errors in choice.left_out) else None
