"""A plan without the terms of a later release keeps its number and its digest."""

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

import pytest

from coreg_core.plan import PLAN_NUMBER, Plan, newest_term, terms_known
from coreg_core.terms import Iteration, Membership


@dataclass(frozen=True)
class Inner:
    depth: int = 3
    later: str = field(default="", metadata={"since": 2})


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)


def test_terms_of_this_release_have_its_number() -> None:
    plan = Plan("run", "federation", Membership(("a", "b"), 2))
    assert plan.number <= PLAN_NUMBER


@pytest.mark.parametrize(("later", "number"), [("", 1), ("given", 2)])
def test_a_later_term_that_is_given_raises_the_number(later: str, number: int) -> None:
    assert newest_term(Outer("x", Inner(later=later))) == number


def test_a_later_term_that_is_not_given_is_in_no_digest() -> None:
    without = {"name": "x", "inner": {"depth": 3}}
    assert terms_known(Outer("x"), 1) == without
    assert terms_known(Outer("x", Inner(later="given")), 2)["inner"]["later"] == "given"


def test_a_plan_with_a_new_term_at_its_default_keeps_its_digest() -> None:
    before = Plan("run", "federation", Membership(("a", "b"), 2))
    new_term = ("pause", float, field(default=0.0, metadata={"since": PLAN_NUMBER + 1}))
    Later: Any = make_dataclass("Later", [new_term], bases=(Iteration,), frozen=True)
    values = {term.name: getattr(before.iteration, term.name) for term in fields(Iteration)}

    after = Plan("run", "federation", Membership(("a", "b"), 2), iteration=Later(**values))
    changed = Plan(
        "run", "federation", Membership(("a", "b"), 2), iteration=Later(**values, pause=1.0)
    )

    assert after.digest == before.digest
    assert changed.number == PLAN_NUMBER + 1
    assert changed.digest != before.digest
