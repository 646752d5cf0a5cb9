"""wire = "float32" through both machines: what travels how, who is held to it, and that a plan without it is what it was."""

import hashlib
import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from masked import masked_sites, sums
from tiny import Pump, all_restarted, make_plan, make_sites, undisturbed

from coordinator.machine.plausibility import SLACK, linear_fault
from coreg_core.agreement.float32 import UNIT, as_told
from coreg_core.errors import BadData
from coreg_core.protocol.messages import Ask, Fault, FromSite, Masked, Prediction, ToSite, Vector
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Additive, Membership, Plan, Scoring, plan_fault, plan_from_dict
from coreg_wire.transport.codec import coordinator_message_to_frames
from coreg_wire.transport.fields import ProtocolError, fill, read
from coreg_wire.v1 import federation_pb2 as pb
from site_agent.ledger.entries import entry_for
from site_agent.session.wording import describe

SINGLES = make_plan(wire="float32", tolerance=1e-14, prediction_tolerance=1e-6)
MASKED = sums(wire="float32")
SITES = ("a", "b", "c")


class Heard:
    """A site, and what it heard and said."""

    def __init__(self, site: Any, change: Any = lambda message, answers: answers):
        self.site, self.change = site, change
        self.said: list[tuple[ToSite, FromSite]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.site, name)

    def handle(self, message: ToSite) -> list[FromSite]:
        answers = self.change(message, self.site.handle(message))
        self.said += [(message, answer) for answer in answers]
        return list(answers)


def heard(plan: Plan, **changes: Any) -> tuple[Pump, dict[str, Heard]]:
    made = masked_sites(plan) if plan.masked else make_sites(SITES)
    sites: Any = {name: Heard(site, *([changes[name]] if name in changes else [])) for name, site in made.items()}
    return Pump(plan, sites).join().run(), sites


def asked(sites: dict[str, Heard]) -> list[tuple[Ask, Any]]:
    return [(q, a) for site in sites.values() for q, a in site.said if isinstance(q, Ask)]


# --- what travels how ---------------------------------------------------------------------------------------------


def test_search_directions_and_their_answers_travel_so_and_nothing_else_is() -> None:
    pump, sites = heard(SINGLES)
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    kinds = set()
    for question, answer in asked(sites):
        assert isinstance(answer, Prediction)
        assert question.targets.single == answer.values.single == (question.part == "linear" and not question.verifies)
        kinds.add((question.part, question.verifies, question.targets.single))
    assert kinds == {("affine", True, False), ("linear", True, False), ("linear", False, True)}
    assert not any(finished.targets.single for finished in pump.models.values() if finished.targets)


def test_under_masks_the_questions_alone_do() -> None:
    pump, sites = heard(MASKED)
    assert pump.end is not None
    assert pump.end.outcome is Outcome.CONVERGED
    assert all(isinstance(answer, Masked) for _, answer in asked(sites))
    assert any(question.targets.single for question, _ in asked(sites))
    assert all(question.targets.single != question.verifies for question, _ in asked(sites))


def test_an_answer_tells_what_it_takes_from_the_direction() -> None:
    _, sites = heard(SINGLES)
    found = 0
    for site in sites.values():
        view = site.runs["run-1"].view
        for question, answer in site.said:
            if isinstance(question, Ask) and question.targets.single:
                t, d = question.targets.values, answer.values.values
                exact = t - view.respond(t, question.weights, "linear")
                # 2⁻²⁴ of itself, and the fixed point in which sums are taken: 2⁻⁶¹ of a bound on t.
                assert (np.abs(d - exact) <= UNIT * np.abs(exact) + 1e-16).all()
                found += 1
    assert found


def test_the_ends_agree_to_what_both_certify() -> None:
    wide = replace(SINGLES, iteration=replace(SINGLES.iteration, wire="float64"))
    one, other = undisturbed(wide), undisturbed(SINGLES)
    for site in SITES:
        a, b = one.models[site].targets, other.models[site].targets
        assert a is not None
        assert b is not None
        assert np.linalg.norm(a.values - b.values) <= 2e-6


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order_and_killed_anywhere_a_run_ends_on_the_same_bits(seed: int) -> None:
    expected = undisturbed(SINGLES)
    assert Pump(SINGLES, make_sites(SITES), shuffle=random.Random(seed)).join().run().bits == expected.bits
    kill = random.Random(seed).randrange(4, len(expected.records) - 1)
    first = Pump(SINGLES, make_sites(SITES), kill_after=kill).join().run()
    again = Pump(SINGLES, all_restarted(first.sites), records=first.records).join().run()
    assert again.bits == expected.bits


# --- who is held to it --------------------------------------------------------------------------------------------


def other_width(vector: Vector) -> Vector:
    """The same vector as nearly as it can be, of the width that it does not have."""
    return Vector(vector.values.astype(np.float32).astype(np.float64), single=not vector.single)


@pytest.mark.parametrize("single", [True, False])
def test_a_site_that_answers_in_another_width_is_excluded(single: bool) -> None:
    def change(message: ToSite, answers: list[FromSite]) -> list[FromSite]:
        if not (isinstance(message, Ask) and message.targets.single == single):
            return answers
        return [replace(a, values=other_width(a.values)) if isinstance(a, Prediction) else a for a in answers]

    pump, _ = heard(replace(SINGLES, membership=Membership(SITES, 3)), b=change)
    assert pump.end is not None
    assert pump.end.outcome is Outcome.SITE_FAULT
    widths = ("float64", "float32") if single else ("float32", "float64")
    assert "b: its answer to question" in pump.end.reason
    assert f"came in {widths[0]}, and the question was in {widths[1]}" in pump.end.reason


@pytest.mark.parametrize("plan", [SINGLES, make_plan(), MASKED])
@pytest.mark.parametrize("verifies", [True, False])
def test_a_question_in_another_width_than_the_plans_is_not_answered(plan: Plan, verifies: bool) -> None:
    _, sites = heard(plan)
    question = [q for q, _ in sites["a"].said if isinstance(q, Ask) and q.part == "linear"][-1]
    wrong = not plan.in_singles("linear", verifies=verifies)
    targets = Vector(question.targets.values.astype(np.float32).astype(np.float64), single=wrong)
    fault = asked_afresh(plan, replace(question, verifies=verifies, targets=targets))
    assert isinstance(fault, Fault)
    assert f'which wire = "{plan.iteration.wire}" of the plan does not have' in fault.reason


def asked_afresh(plan: Plan, question: Ask) -> FromSite:
    """What site a, which has accepted the plan and answered nothing, answers."""
    site = (masked_sites(plan) if plan.masked else make_sites(SITES))["a"]
    site.handle(plan)
    [answer] = site.handle(question)
    return answer


def test_labels_never_travel_in_float32() -> None:
    _, sites = heard(SINGLES)
    affine = next(q for q, _ in sites["a"].said if isinstance(q, Ask) and q.part == "affine")
    fault = asked_afresh(SINGLES, replace(affine, verifies=False, targets=replace(affine.targets, single=True)))
    assert isinstance(fault, Fault)
    assert "(affine) that verifies nothing in float32" in fault.reason


def test_a_model_to_targets_in_float32_is_none() -> None:
    pump, sites = heard(SINGLES)
    affine = next(q for q, _ in sites["a"].said if isinstance(q, Ask) and q.part == "affine")
    site = make_sites(SITES)["a"]
    site.handle(SINGLES)
    site.handle(affine)
    # At target 0 float32 holds every number, and the digest is the same: the width itself is refused.
    finished = replace(pump.models["a"], columns=affine.columns, targets=affine.targets)
    wrong = replace(finished, targets=replace(affine.targets, single=True))
    assert "targets in float32" in (site.runs["run-1"].finish(wrong)[1] or "")
    assert site.runs["run-1"].finish(finished)[1] is None


@pytest.mark.parametrize("number", [1e-9 + 1.0, 1e39, np.nan])
def test_a_vector_that_float32_does_not_hold_cannot_be_made(number: float) -> None:
    with pytest.raises(BadData, match="float32 does not hold"):
        Vector(np.array([[0.5], [number]]), single=True)


def test_the_width_is_part_of_what_a_vector_is() -> None:
    one, other = Vector(np.ones((2, 1))), Vector(np.ones((2, 1)), single=True)
    assert one != other
    assert one.digest == other.digest, "of the numbers"
    assert (one.wire_bytes, other.wire_bytes) == (16, 8)


def test_an_answer_beyond_float32_is_a_fault_and_never_infinity() -> None:
    """No contraction does it at a direction of norm 1; a question of another size, and a view that is none, do."""

    class Doubling:
        def respond(self, targets: Any, weights: Any, part: str) -> Any:
            return -targets

    _, sites = heard(SINGLES)
    question = next(q for q, _ in asked(sites) if q.targets.single)
    huge = Vector(np.full(question.targets.shape, float(np.float32(3e38))), single=True)
    training = replace(sites["a"].runs["run-1"], view=Doubling(), last=None, result=None)
    number = max(training.remembered.asked)[0] + 1
    far = replace(question, question=number, targets=huge, exponents=(-80,) * len(question.columns))
    _, fault = training.answer(far)
    assert isinstance(fault, Fault)
    assert "beyond what float32 holds" in fault.reason


@given(st.integers(0, 2**32 - 1), st.floats(-3.0, 3.0), st.integers(1, 4))
def test_no_honest_answer_in_float32_is_found_false_and_a_lie_still_is(seed: int, power: float, n_sites: int) -> None:
    """At the very bounds: R = μS(I + μS)⁻¹ asked along its first eigenvector, which it follows as far as b_v allows."""
    rng, mu = np.random.default_rng(seed), 10.0**power
    A = rng.normal(size=(9, 4))
    values, vectors = np.linalg.eigh(A @ A.T)
    t = vectors[:, [0, -1]].astype(np.float32).astype(np.float64)
    x = mu * values[-1]
    exact = t - np.linalg.solve(np.eye(9) + mu * (A @ A.T), t)
    most = np.full(2, n_sites * x / (1.0 + x))
    told = sum(as_told(t, exact) for _ in range(n_sites))
    assert linear_fault(t, told, most, n_sites, singles=True) is None
    off = 4.0 * n_sites * (SLACK + UNIT) * t
    assert linear_fault(t, n_sites * x / (1.0 + x) * t + off, most, n_sites, singles=True) is not None


# --- the plan, the ledger and the words ---------------------------------------------------------------------------

# Of release 0.2.0 before the key was there, by that code: what is stored under these digests is found under them.
OLDER = {
    "agreement": (
        "a1f48e7c9dbfa3c83b25b159760f9dc89055a82f3725990731ff0475a48b7f80",
        "902b04b645b5a6d197a09eae5d88d26869f96a89647d8d156fb07499b3b0d1e3",
    ),
    "additive": (
        "1a429d6e297ae6f9b9a8b94710686bb3b217be5632ff21b7f50b1e4464545980",
        "07d37cccdc981ec2c1ee92c573608b5dbd445ed73c9129febb7451b3f734dd66",
    ),
}


@pytest.mark.parametrize("objective", OLDER)
def test_a_plan_without_the_key_digests_and_travels_as_before_there_was_one(objective: str) -> None:
    additive = Plan("run-1", "tiny", Membership(SITES, 3), Additive())
    plan = make_plan() if objective == "agreement" else additive
    frames = b"".join(coordinator_message_to_frames(plan))
    assert (plan.digest, hashlib.sha256(frames).hexdigest()) == OLDER[objective]
    assert plan_from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_the_key_is_part_of_the_plan_where_it_says_something() -> None:
    assert SINGLES.digest != replace(SINGLES, iteration=replace(SINGLES.iteration, wire="float64")).digest
    assert plan_from_dict(json.loads(json.dumps(SINGLES.to_dict()))) == SINGLES
    message = pb.Plan()
    fill(message, SINGLES)
    assert message.iteration.wire == "float32"
    assert read(Plan, message) == SINGLES
    message.iteration.wire = "float64"
    assert read(Plan, message).iteration.wire == "float64"
    message.iteration.wire = "float16"
    with pytest.raises(ProtocolError, match=r"Iteration.wire is 'float16'"):
        read(Plan, message)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (make_plan(wire="float32", schedule="consensus"), "every round of consensus does"),
        (
            make_plan(wire="float32", schedule="block-coordinate-descent"),
            "every round of block-coordinate-descent does",
        ),
        (replace(SINGLES, objective=Additive()), "one orthonormal basis"),
        (replace(SINGLES, objective=Scoring("run-0"), membership=Membership(SITES, 3)), "scoring has none"),
    ],
)
def test_where_every_round_verifies_the_key_is_refused_in_a_sentence(plan: Plan, said: str) -> None:
    assert said in (plan_fault(plan) or "")
    [refused] = make_sites(SITES)["a"].handle(plan)
    assert said in refused.reason


def test_it_is_refused_nowhere_else() -> None:
    assert plan_fault(SINGLES) is None
    assert plan_fault(MASKED) is None


def test_the_ledger_says_what_left_and_the_operator_hears_of_it() -> None:
    _, sites = heard(SINGLES)
    lines = [(entry_for(answer, question, None), question, answer) for question, answer in asked(sites)]
    for line, question, answer in lines:
        assert line["sha256"] == answer.values.digest
        if question.targets.single:
            told = {name: line[name] for name in ("wire", "bytes", "what")}
            what = "by how much the answer falls short of the target"
            assert told == {"wire": "float32", "bytes": 4 * answer.values.values.size, "what": what}
        else:
            assert not {"wire", "bytes"} & set(line), "as before there was the key"
    assert "search directions in float32" in (describe(SINGLES) or "")
    assert "float32" not in (describe(make_plan()) or "")
