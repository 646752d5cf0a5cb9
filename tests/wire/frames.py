"""Messages of every kind for the tests of frames: strategies of hypothesis, and functions that make and read frames."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from hypothesis import strategies as st

from coreg_core.agreement.schedules import SCHEDULE_NAMES
from coreg_core.objectives.additive import Additive
from coreg_core.objectives.agreement import MOST_COLUMNS, Agreement, Form, LabelUnits, PlanKernel
from coreg_core.objectives.alignment import Alignment, IdRule
from coreg_core.objectives.scoring import Scoring
from coreg_core.objectives.setting import Aggregation, DropoutPolicy, Iteration, Membership, Privacy
from coreg_core.protocol import messages as m
from coreg_core.protocol.messages import FromSite, ToSite, Words
from coreg_core.protocol.outcomes import Outcome
from coreg_core.protocol.plan import Plan
from coreg_wire.transport.codec import (
    PIECE_BYTES,
    Assembler,
    coordinator_message_to_frames,
    site_message_to_frames,
)

REPOSITORY = Path(__file__).parents[2]
PIECE = PIECE_BYTES // 8
Made = Callable[[], Any]

texts = st.text(st.characters(categories=["L", "N", "P", "S"], include_characters=" "), max_size=40)
# Runs that the assemblers of these tests expect; other vectors are refused, which has tests of its own.
RUNS = ("r", "run-2", "another run")
runs = st.sampled_from(RUNS)
finite = st.floats(allow_nan=False, allow_infinity=False)
not_negative = st.floats(0.0, allow_infinity=False, allow_nan=False).map(abs)  # -0.0 is at least 0, and another number
positive = st.floats(0.0, exclude_min=True, allow_infinity=False, allow_nan=False)
uint31, uint64 = st.integers(0, 2**31 - 1), st.integers(0, 2**64 - 1)
counts = st.integers(1, 2**31 - 1)
few_numbers = st.lists(finite, max_size=4).map(tuple)


def made_later(message: type, *args: Any, **kwargs: Any) -> st.SearchStrategy[Any]:
    """A message that the test makes by calling: beartype looks at a random entry of a tuple, and hypothesis forbids
    that while it draws."""
    return st.builds(partial, st.just(message), *args, **kwargs)


words = st.lists(uint64, max_size=40).map(lambda values: Words(np.array(values, dtype="<u8")))


def some(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=3).map(tuple)


agreements = made_later(
    Agreement,
    form=st.sampled_from(get_args(Form)),
    kernel=st.sampled_from(get_args(PlanKernel)),
    bandwidth=st.sampled_from(["paper", "median", "loo"]) | positive,
    ridge=st.sampled_from(["paper", "loo"]) | positive,
    landmarks=counts,
    seed=uint31,
    coupling=st.lists(not_negative, min_size=1, max_size=MOST_COLUMNS).map(tuple),
    label_units=st.sampled_from(get_args(LabelUnits)),
)
iterations = st.builds(
    Iteration,
    name=st.sampled_from(SCHEDULE_NAMES),
    tolerance=not_negative,
    prediction_tolerance=not_negative,
    max_rounds=counts,
    threads=st.integers(1, 1024),
)
memberships = made_later(
    Membership,
    sites=st.lists(texts, min_size=1, max_size=4).map(tuple),
    min_sites=counts,
    on_dropout=st.sampled_from(get_args(DropoutPolicy)),
)


def plan(run: str, federation: str, membership: Made, objective: Made, *terms: Any) -> Plan:
    return Plan(run, federation, membership(), objective(), *terms)


additives = made_later(
    Additive,
    kernel=st.sampled_from(["gaussian", "linear"]),
    task=st.sampled_from(["regression", "classification"]),
    rows_per_feature=st.integers(5, 1000),
    noise=st.floats(0, 1),
    label_noise=st.floats(0, 10),
    least_labels=st.integers(3, 100_000),
    least_rows=st.integers(10, 100_000),
)
scorings = made_later(
    Scoring,
    of_run=texts,
    trained=st.sampled_from(["additive", "agreement"]),
    receivers=some(texts),
    batches=some(texts),
)
alignments = st.builds(Alignment, st.integers(1, 1_000_000), st.sampled_from(get_args(IdRule)))
plans = st.builds(
    partial,
    st.just(plan),
    runs,
    texts,
    memberships,
    agreements | additives | scorings | alignments.map(lambda made: lambda: made),
    iterations,
    st.builds(Privacy, st.sampled_from(get_args(Aggregation)), st.booleans()),
    texts,
    texts,
    st.none() | alignments,
    texts,
    texts,
)
offers = made_later(
    m.Offer,
    run=runs,
    attempt=uint31,
    plan_digest=texts,
    site=texts,
    n_unlabelled=uint64,
    ids_digest=texts,
    data_digest=texts,
    key=texts,
    release=texts,
    identity=texts,
    signature=texts,
)
parts = some(st.builds(m.Part, texts, texts))
reports = made_later(m.Report, uint64, texts, st.booleans(), few_numbers, few_numbers, texts, texts)
ledger_heads = st.builds(m.LedgerHead, uint64, texts, texts)


def answer(report: Made, **values: Any) -> m.Answer:
    return m.Answer(report=report(), **values)


def step(roster: list[Made], **values: Any) -> m.Step:
    return m.Step(roster=tuple(offer() for offer in roster), **values)


def proposal(run: str, attempt: int, plan: Made, approval: float, keys: tuple[str, ...]) -> m.Proposal:
    return m.Proposal(run, attempt, plan(), approval, keys)


FROM_SITE: dict[type, st.SearchStrategy[Any]] = {
    m.Hello: made_later(m.Hello, texts, uint31, texts, some(runs)),
    m.Offer: offers,
    m.PlanRefused: made_later(m.PlanRefused, runs, texts),
    m.Approval: made_later(m.Approval, runs, st.booleans()),
    m.Unaligned: made_later(m.Unaligned, runs),
    m.Answer: made_later(
        answer,  # type: ignore[arg-type]
        run=runs,
        attempt=uint31,
        step=uint64,
        report=reports,
        parts=parts,
        words=st.none() | words,
    ),
    m.Fault: made_later(m.Fault, runs, uint31, uint64, texts),
    m.Fetched: made_later(m.Fetched, runs, ledger_heads, texts),
    m.Leaving: made_later(m.Leaving, texts),
}
TO_SITE: dict[type, st.SearchStrategy[Any]] = {
    m.Proposal: made_later(proposal, runs, uint31, plans, st.floats(0.0, 1e9), some(texts)),  # type: ignore[arg-type]
    m.Step: made_later(
        step,  # type: ignore[arg-type]
        run=runs,
        attempt=uint31,
        step=uint64,
        roster=st.lists(offers, max_size=3),
        parts=parts,
        words=st.none() | words,
    ),
    m.Finished: made_later(m.Finished, runs, st.sampled_from(Outcome), texts),
    m.Renewed: made_later(m.Renewed, texts),
    m.Countersigned: made_later(m.Countersigned, runs, ledger_heads, texts, texts, texts, texts),
    m.Dismissed: made_later(m.Dismissed, runs, st.sampled_from(Outcome), texts),
    m.Rejected: made_later(m.Rejected, texts, st.booleans()),
}
from_site, to_site = st.one_of(FROM_SITE.values()), st.one_of(TO_SITE.values())


def answered(count: int, run: str = "r", number: int = 0) -> m.Answer:
    """An answer of so many words."""
    values = np.random.default_rng(count).integers(0, 2**64, size=count, dtype="<u8")
    return m.Answer(run, 0, number, m.Report(), words=Words(values))


def expecting(room: int, *expected: str) -> Assembler:
    assembler = Assembler()
    for run in expected or RUNS:
        assembler.expect(run, room)
    return assembler


def from_site_frames(frames: Iterable[bytes], room: int = 40) -> list[FromSite]:
    assembler = expecting(room)
    whole = [assembler.feed_site(data) for data in frames]
    return [message for message in whole if message is not None]


def to_site_frames(frames: Iterable[bytes], room: int = 40) -> list[ToSite]:
    assembler = expecting(room)
    whole = [assembler.feed_coordinator(data) for data in frames]
    return [message for message in whole if message is not None]


def of_site(message: FromSite) -> list[bytes]:
    return list(site_message_to_frames(message))


def of_coordinator(message: ToSite) -> list[bytes]:
    return list(coordinator_message_to_frames(message))
