r"""The plan of a federation: nested values, each with its defaults and its limits.

The configuration (federation.toml), the wire and the documentation derive from these classes, so a term is added in
one place. Limits are annotations (`Ge`, `Gt`, `Le`, `Len`); code that reads a plan from outside enforces them. The
agent's policy judges a plan, and both ends compare its `digest`.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Gt, Le, Len

from coreg_core.additive.terms import Additive as Additive
from coreg_core.names import SCALAR_WORDS, TAG_WORDS, ScheduleName

IdRule: TypeAlias = Literal["exact", "folded", "numbers"]
MOST_IDS = 5_000_000
MOST_POINTS = 50_000_000  # on the way in one alignment: an hour, and 3 GB of a run log
Form: TypeAlias = Literal["exact", "semi-parametric", "linear"]
PlanKernel: TypeAlias = Literal["gaussian", "laplacian", "linear"]
LabelUnits: TypeAlias = Literal["centred", "standardised"]
DropoutPolicy: TypeAlias = Literal["wait", "continue"]
Aggregation: TypeAlias = Literal["secure", "plaintext"]

MOST_COLUMNS = 64
MOST_SCALARS = 4096  # of one answer
MOST_ADDITIVE = 38  # sites, so that each can have five features (`coreg_core.secure.cross_products`)
FEWEST_SEALED, MOST_SEALED = 2, 64  # sites of a plan with keys, which are exchanged in pairs
_LARGEST = 2**31 - 1  # fits the wire's integers, with margin
Positive: TypeAlias = Annotated[float, Gt(0)]
NotNegative: TypeAlias = Annotated[float, Ge(0)]
Natural: TypeAlias = Annotated[int, Ge(0), Le(_LARGEST)]
Count: TypeAlias = Annotated[int, Ge(1), Le(_LARGEST)]


@dataclass(frozen=True)
class Agreement:
    """The paper's objective, coRLSR: the sites' functions are pulled together on the shared instances.

    ``form`` is the span of each f_v, ``kernel`` its kernel with ``bandwidth`` σ (a rule that each site evaluates on its own
    rows, or a number), ``ridge`` ν. "semi-parametric" is spanned by all labelled rows up to ``landmarks``, and beyond that by so
    many rows, drawn with ``seed``. ``coupling`` is λ, one for each column; ``label_units`` how each site transforms its label
    column before it trains.
    """

    form: Form = "exact"
    kernel: PlanKernel = "gaussian"
    bandwidth: Literal["paper", "median", "loo"] | Positive = "paper"
    ridge: Literal["paper", "loo"] | Positive = "paper"
    landmarks: Count = 1000
    seed: Natural = 0
    coupling: Annotated[tuple[NotNegative, ...], Len(1, MOST_COLUMNS)] = (0.01,)
    label_units: LabelUnits = "centred"


@dataclass(frozen=True)
class Scoring:
    """Scoring together: the sites' parts of one trained model, summed on instances that all of them list. Nothing is trained.

    ``of_run`` is the run that trained the models, ``trained`` its objective: additive parts add up (each site knows the
    intercept), agreeing models are averaged. An individual is scored by the sites that have a record of it, if they are
    ``min_sites`` or more. ``receivers`` get the scores; if empty, all sites do.
    ``batches`` are the data sets to score, in order; if empty, the plan's ``data``.
    """

    of_run: str
    trained: Literal["additive", "agreement"] = "additive"
    receivers: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()


@dataclass(frozen=True)
class Alignment:
    """Which ids all sites have, without disclosing the others. Nothing is trained.

    ``max_ids`` bounds the ids of a site. ``ids`` is the rule by which every site normalises its ids: "exact" keeps the text,
    "folded" ignores case, spaces and the form of Unicode, "numbers" also leading zeros. The shared set is the ids that all
    sites have.
    """

    max_ids: Annotated[int, Ge(1), Le(MOST_IDS)] = 100_000
    ids: IdRule = "folded"


# Add another objective here, and in the wire's oneof of the same name. `Additive` is defined in coreg_core/additive/terms.py.
Objective: TypeAlias = Agreement | Additive | Scoring | Alignment
_NAMES: dict[type[Any], str] = {
    Agreement: "agreement",
    Additive: "additive",
    Scoring: "scoring",
    Alignment: "alignment",
}


@dataclass(frozen=True)
class Iteration:
    """The schedule and its stopping rule: gap ≤ tolerance · Q(0) and every prediction bound ≤ its tolerance."""

    name: ScheduleName = "conjugate-gradients"
    tolerance: NotNegative = 1e-10
    prediction_tolerance: NotNegative = 1e-6
    max_rounds: Count = 1000
    threads: Annotated[int, Ge(1), Le(1024)] = 1


@dataclass(frozen=True)
class Membership:
    """The sites that can take part, the minimum number, and the handling of a site that does not answer.

    ``on_dropout`` "wait" stalls until it returns. "continue" drops it for the rest of the run.
    """

    sites: Annotated[tuple[str, ...], Len(1, 10_000)]
    min_sites: Count
    on_dropout: DropoutPolicy = "wait"


@dataclass(frozen=True)
class Privacy:
    """The coordinator's view: none of the sites' answers ("secure"), or each of them ("plaintext").

    ``membership_changes``: sites can be summed again with one more or one fewer of them, which discloses that one's
    answers; every site must allow it too.
    """

    aggregation: Aggregation = "secure"
    membership_changes: bool = False


@dataclass(frozen=True)
class Plan:
    """A computation of the federation and its terms. Each agent accepts or refuses it, before any other step.

    Its digest covers every field but ``run``: the same plan started again has the same digest. ``study`` is the name of the
    study, for a federation that runs several, and ``data`` the name of its data set at every site. A federation of one run
    names neither.
    """

    run: str
    federation: str
    membership: Membership
    objective: Objective = Agreement()
    iteration: Iteration = Iteration()
    privacy: Privacy = Privacy()
    study: str = ""
    data: str = ""

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that can take part."""
        return self.membership.sites

    @property
    def couplings(self) -> tuple[float, ...]:
        """λ of each column as in the plan, in order; none under the additive objective."""
        return self.objective.coupling if isinstance(self.objective, Agreement) else ()

    @property
    def masked(self) -> bool:
        """Whether the coordinator adds masked words."""
        return self.privacy.aggregation == "secure"

    def most_words(self, n_unlabelled: int, *, of_all: bool = False) -> int:
        """The most words of an answer in the run, or of a step made of all answers, for which a receiver allocates memory."""
        match self.objective:
            case Agreement(coupling=coupling):
                plain = n_unlabelled * len(coupling)
            case Additive():  # B of a site, of at most 60 columns, and H; ciphertexts are below a tenth of that
                plain = (n_unlabelled + 16_384) * 64 + 3328 * 64
            case Alignment():
                plain = 175_000  # a block of a list, or of the tally
            case _:
                plain = n_unlabelled
        joined = len(self.sites) if of_all and isinstance(self.objective, Additive) else 1
        return joined * (plain + SCALAR_WORDS * MOST_SCALARS + TAG_WORDS)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = asdict(self)
        plain["objective"] = {"name": _NAMES[type(self.objective)], **plain["objective"]}
        return plain

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of every field but ``run``."""
        fields = {name: value for name, value in self.to_dict().items() if name != "run"}
        return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def plan_from_dict(plain: dict[str, Any]) -> Plan:
    """The inverse of `Plan.to_dict`, through its JSON.

    Raises
    ------
    ValueError
        the value is not a plan of this release.
    """
    kind = {name: kind for kind, name in _NAMES.items()}[plain["objective"]["name"]]
    said = {key: value for key, value in plain["objective"].items() if key != "name"}
    objective = {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
    membership = {**plain["membership"], "sites": tuple(plain["membership"]["sites"])}
    try:
        return Plan(
            run=plain["run"],
            federation=plain["federation"],
            membership=Membership(**membership),
            objective=kind(**objective),
            iteration=Iteration(**plain["iteration"]),
            privacy=Privacy(**plain["privacy"]),
            study=plain["study"],
            data=plain["data"],
        )
    except TypeError as error:
        raise ValueError(f"no plan of this release ({error})") from None


def plan_fault(plan: Plan) -> str | None:
    """Errors across terms: duplicate sites, a minimum above the number of sites; None if the plan is valid."""
    sites, least = plan.sites, plan.membership.min_sites
    if len(set(sites)) != len(sites):
        twice = sorted({site for site in sites if sites.count(site) > 1})
        return f"sites={list(sites)} lists {', '.join(twice)} twice; every site counts once."
    if list(sites) != sorted(sites):
        return f"sites={list(sites)} are not in site order."
    if least > len(sites):
        return f"min_sites={least}, but {len(sites)} sites are listed."
    if plan.masked and least < FEWEST_SEALED:
        return f'min_sites={least}: sealed sums need {FEWEST_SEALED} sites at least. Say [privacy] aggregation = "plaintext".'
    if plan.masked and len(sites) > MOST_SEALED:
        return (
            f"{len(sites)} sites: keys are exchanged in pairs, and sealed sums have at most {MOST_SEALED} sites. Say [privacy] "
            'aggregation = "plaintext", where every site agrees to that.'
        )
    if isinstance(plan.objective, Additive) and not plan.masked:
        return 'aggregation="plaintext": an additive training needs sealed sums.'
    if isinstance(plan.objective, Additive) and len(sites) > MOST_ADDITIVE:
        return (
            f"{len(sites)} sites: an additive training has at most {MOST_ADDITIVE}. More sites can agree (agreement)."
        )
    if isinstance(plan.objective, Scoring):
        return _scoring_fault(plan, plan.objective)
    if isinstance(plan.objective, Alignment):
        return _alignment_fault(plan, plan.objective)
    return None


def _alignment_fault(plan: Plan, terms: Alignment) -> str | None:
    if not plan.masked:
        return 'aggregation="plaintext": an alignment needs sealed sums.'
    if plan.membership.min_sites < len(plan.sites):
        return f"min_sites={plan.membership.min_sites} of {len(plan.sites)}: an alignment needs every site."
    M = len(plan.sites)
    if M * (M + 1) * terms.max_ids > MOST_POINTS:
        return f"max_ids={terms.max_ids} at {M} sites: at most {MOST_POINTS // (M * (M + 1))} fit an alignment."
    return None


def _scoring_fault(plan: Plan, terms: Scoring) -> str | None:
    if not plan.masked:
        return 'aggregation="plaintext": a scoring needs sealed sums.'
    if unknown := sorted(set(terms.receivers) - set(plan.sites)):
        return f"receivers={unknown} are none of the sites {list(plan.sites)}."
    return None
