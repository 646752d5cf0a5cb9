r"""The plan of a federation: nested values, each with its defaults and its limits.

The configuration (federation.toml), the wire and the documentation derive from these classes, so a
term is added in one place. Limits are annotations (`Ge`, `Gt`, `Le`, `Len`); code that reads a plan
from outside enforces them. The agent's policy judges a plan, and both ends compare its `digest`.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, TypeAlias

from annotated_types import Len

from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import Agreement
from coreg_core.objectives.alignment import Alignment
from coreg_core.objectives.scoring import Scoring
from coreg_core.objectives.setting import KEYS, Kind
from coreg_core.shapes import KEY_SIZE, Shape
from coreg_core.terms import Iteration, Membership, Named, Privacy, RunName, StudyName

# The newest plan that this release knows. A term that a later release adds has a default, and the
# number of that release as ``since`` in its field's metadata. So a plan without the term keeps its
# number and its digest, and an agent of the release before can take part.
PLAN_NUMBER = 1
MOST_TEXT = 200  # characters of a federation's or a column's name
Text: TypeAlias = Annotated[str, Len(0, MOST_TEXT)]
# Sites of a plan with keys, which are exchanged in pairs.
FEWEST_SEALED = 2
MOST_SEALED = 64
LISTED = 64  # sites in a sentence
PART = "; "  # separates the parts of a text in a question to operators
# Add another objective here, and in the wire's oneof of the same name.
Objective: TypeAlias = Agreement | Additive | Scoring | Alignment
OBJECTIVES: dict[str, type[Objective]] = {
    kind.name: kind for kind in (Agreement, Additive, Scoring, Alignment)
}

# Every kind of question, and what an answer to it discloses.
QUESTIONS: dict[str, Kind] = {
    KEYS: Kind("", "a contribution to the run's key, sealed for each other site: no data")
} | {name: kind for objective in OBJECTIVES.values() for name, kind in objective.questions.items()}


@dataclass(frozen=True)
class Plan:
    """A computation of the federation and its terms. Its digest covers every field but ``run``."""

    run: RunName
    federation: Text
    membership: Membership
    objective: Objective = field(default_factory=Agreement)
    iteration: Iteration = field(default_factory=Iteration)
    privacy: Privacy = field(default_factory=Privacy)
    study: StudyName = ""  # "" in a federation of one run, as the next
    data: Annotated[str, Named("data set", optional=True)] = ""  # its name at every site
    # How ids are aligned before it; None: they are equal by agreement.
    align: Alignment | None = None
    target: Text = ""  # a column, where a site says nothing else; as the next
    id: Text = ""
    # It ends once every site has said whether it takes part, before any answer about rows.
    rehearsal: bool = False

    @cached_property
    def number(self) -> int:
        """That of the oldest plans that have all terms of this one."""
        return newest_term(self)

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that can take part."""
        return self.membership.sites

    @property
    def couplings(self) -> tuple[float, ...]:
        """λ of each column as in the plan, in order; none under the other objectives."""
        if isinstance(self.objective, Agreement):
            return self.objective.coupling
        return ()

    @cached_property
    def most_answers(self) -> int:
        """The most answers that an agent gives to this plan on the same instances, in all runs."""
        return self.objective.most_answers(self)

    @property
    def listed_sites(self) -> str:
        """The sites in a sentence; the first ones of many."""
        text = ", ".join(self.sites[:LISTED])
        if len(self.sites) > LISTED:
            text += f" and {len(self.sites) - LISTED} more"
        return text

    @cached_property
    def masked(self) -> bool:
        """Whether the coordinator adds masked words."""
        return self.privacy.aggregation == "secure"

    def shape(self, kind: str, shared: int, sites: tuple[str, ...]) -> Shape | None:
        """The bound of an answer to a question of that kind; None: the plan has no such question.

        ``shared``: the shared instances that all offers name, ``sites``: the attempt's members.
        Both ends derive it: the coordinator before it forwards anything, a site before it uses it.
        """
        if kind == KEYS and self.masked:
            return Shape(to_each=dict.fromkeys(sites, KEY_SIZE))
        if kind not in self.objective.questions:
            return None
        return self.objective.shape(kind, shared, sites)

    def most_bytes(self, shared: int, sites: tuple[str, ...]) -> int:
        """The payload of the largest answer: a receiver grants memory for no more."""
        shapes = (self.shape(kind, shared, sites) for kind in (KEYS, *self.objective.questions))
        return max(shape.size for shape in shapes if shape is not None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = asdict(self)
        plain["objective"] = {"name": self.objective.name, **plain["objective"]}
        return plain

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON of every field but ``run``, and but terms that a plan of
        this number lacks.
        """
        terms = terms_known(self, self.number)
        terms["objective"]["name"] = self.objective.name
        del terms["run"]
        text = json.dumps(terms, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def newest_term(terms: Any) -> int:
    """The largest ``since`` of the fields of nested dataclasses that differ from their default."""
    newest = 1
    for term in fields(terms):
        value = getattr(terms, term.name)
        default = term.default if term.default_factory is MISSING else term.default_factory()
        if value != default:
            newest = max(newest, term.metadata.get("since", 1))
        if is_dataclass(value):
            newest = max(newest, newest_term(value))
    return newest


def terms_known(terms: Any, number: int) -> dict[str, Any]:
    """Plain values of nested dataclasses, without fields that plans of this number lack."""
    known = {}
    for term in fields(terms):
        if term.metadata.get("since", 1) <= number:
            value = getattr(terms, term.name)
            known[term.name] = terms_known(value, number) if is_dataclass(value) else value
    return known


def plan_from_dict(plain: dict[str, Any]) -> Plan:
    """The inverse of `Plan.to_dict`, through its JSON.

    ValueError: the value is not a plan of this release.
    """
    kind: Callable[..., Objective] = OBJECTIVES[plain["objective"]["name"]]
    settings = {key: value for key, value in plain["objective"].items() if key != "name"}
    objective = {
        key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()
    }
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
            align=None if plain["align"] is None else Alignment(**plain["align"]),
            target=plain["target"],
            id=plain["id"],
            rehearsal=plain["rehearsal"],
        )
    except TypeError as error:
        raise ValueError(f"no plan of this release ({error})") from None


def plan_fault(plan: Plan) -> str | None:
    """Errors across terms, such as a minimum above the number of sites; None if the plan is
    valid.
    """
    sites = plan.sites
    least = plan.membership.min_sites
    if (fault := _order_fault(sites)) is not None:
        return fault
    for text in (plan.target, plan.id, *getattr(plan.objective, "classes", ())):
        if PART in text:
            return (
                f"{text!r}: the name of a column or class in a plan cannot have a semicolon and a"
                " space. They separate the parts of the question to operators. Rename it."
            )
    if least > len(sites):
        return f"min_sites={least}, but {len(sites)} sites are listed."
    if plan.masked and least < FEWEST_SEALED:
        return (
            f"min_sites={least}: sealed sums need {FEWEST_SEALED} sites at least. Name more sites,"
            " or raise min_sites."
        )
    if plan.masked and len(sites) > MOST_SEALED:
        return (
            f"{len(sites)} sites: keys are exchanged in pairs, and sealed sums have at most"
            f' {MOST_SEALED} sites. Say [privacy] aggregation = "plaintext", where every site'
            " agrees to that."
        )
    fault = plan.objective.fault(plan)
    if fault is not None or plan.align is None:
        return fault
    fault = plan.align.fault(alignment_of(plan, 0))
    if fault is None:
        return None
    return (
        f"{fault} Or write align = false in [alignment], if the sites' ids are equal by agreement."
    )


def _order_fault(sites: tuple[str, ...]) -> str | None:
    """Why these are not sites in order, each listed once; or None."""
    for before, site in pairwise(sorted(sites)):
        if before == site:
            return f"the plan lists {site} twice; every site counts once."
    for before, site in pairwise(sites):
        if before > site:
            return f"the sites are not in site order: {site} is listed after {before}."
    return None


_ALIGNS = "-ids-"  # in the name of a run that aligns the ids for another


def alignment_of(plan: Plan, attempt: int) -> Plan:
    """The plan of the run that aligns the ids of all sites for this attempt of a run."""
    assert plan.align is not None
    return replace(
        plan,
        run=f"{plan.run}{_ALIGNS}{attempt}",
        membership=Membership(plan.sites, len(plan.sites)),
        objective=plan.align,
        iteration=Iteration(threads=plan.iteration.threads),
        align=None,
        rehearsal=False,
    )


ASKS = "-ask-"  # in the name of a run of a standing plan
MOST_RUNS = 10_000  # a day, that a site asks for: a run adds about 7 kB to each site's ledger


def on_demand(plan: Plan, name: str) -> Plan:
    """The plan of a run that a site asked for: that of the standing plan, under its own name."""
    return replace(plan, run=f"{plan.run}{ASKS}{name}")


def is_on_demand(run: str) -> bool:
    """Whether a run of that name is one of a standing plan that a site asked for."""
    return ASKS in run


def next_alignment(plan: Plan) -> Plan:
    """The same alignment under its next name."""
    above, _, number = plan.run.rpartition(_ALIGNS)
    return replace(plan, run=f"{above}{_ALIGNS}{int(number) + 1}")


def aligns_for(run: str) -> str:
    """The run for which this one aligns ids; "" of a run of its own."""
    return run.rpartition(_ALIGNS)[0]
