"""Label privacy at a site: nothing leaves that depends on a label but through its randomisation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from core.test_exchange import (
    short,  # noqa: F401 - the fixture: short secrets have the same sums
)
from machine.test_additive import plan_of, rows_of

from coreg_core.objectives.additive import Additive
from site_agent.machine import additive
from site_agent.machine.additive import AdditiveComputation, gain_of
from site_agent.machine.objective import Answers, Reply
from site_agent.site_data import PrivateData, row_keys

YES_NO = Additive(task="classification")
NUMBERS = Additive(label_range=(-3.0, 3.0), label_epsilon=4.0)


def yes_no(**counts: int) -> dict[str, PrivateData]:
    return {
        name: replace(rows, y=(rows.y > 0).astype(float))
        for name, rows in rows_of("abc", **counts).items()
    }


def begun(data: Mapping[str, PrivateData], terms: Additive) -> list[AdditiveComputation]:
    """The sites of an attempt, with the same secrets in each test."""
    made = []
    for seed, (name, rows) in enumerate(data.items()):
        draw = np.random.default_rng(seed).bytes
        site = AdditiveComputation(plan_of(terms), terms, name, rows, lambda n: n, draw)
        site.begin(tuple(data), b"", b"", lambda _key, make: make())
        made.append(site)
    return made


def told(sites: list[AdditiveComputation]) -> list[list[Reply]]:
    """Every reply of every site, relayed as a run does."""
    replies = []
    while (question := sites[0].ask()) is not None:
        now = [site.answer(question, b"chain") for site in sites]
        replies.append(now)
        words = [reply.summed for reply in now if reply.summed is not None]
        total = None
        if words:
            total = np.asarray(np.sum(words, axis=0, dtype=np.uint64))
        names = [site.name for site in sites]
        to_all = dict(zip(names, (reply.to_all for reply in now), strict=True))
        for site in sites:
            to_me = {
                name: reply.to_each[site.name]
                for name, reply in zip(names, now, strict=True)
                if site.name in reply.to_each
            }
            site.take(question, Answers(total, to_all, to_me), b"chain")
    return replies


def as_bytes(reply: Reply) -> Any:
    """All that a reply sends, and what a refusal can name."""
    summed = b""
    if reply.summed is not None:
        summed = reply.summed.tobytes()
    rows = ""
    if reply.rows is not None:
        rows = reply.rows.digest
    return summed, reply.to_all, dict(reply.to_each), rows, reply.labelled


@pytest.mark.parametrize("terms", [YES_NO, replace(NUMBERS, label_range=(-1.0, 2.0))])
def test_other_true_labels_with_the_same_randomised_ones_send_the_same_bytes(
    terms: Additive, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = np.arange(60) % 2.0
    monkeypatch.setattr(additive, "randomised", lambda _y, _rules, _draws: fixed)
    data = yes_no()
    other = data | {"a": replace(data["a"], y=1.0 - data["a"].y)}
    first = begun(data, terms)
    second = begun(other, terms)

    said = [list(map(as_bytes, replies)) for replies in told(first)]
    again = [list(map(as_bytes, replies)) for replies in told(second)]

    assert len(said) == 5
    assert said == again
    verdicts = [site.result().judged.verdict for site in (first[0], second[0])]
    assert verdicts[0].gains["score"] != verdicts[1].gains["score"], "it is of the true labels"


def test_a_label_has_one_noise_and_a_corrected_one_or_another_target_has_fresh_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    monkeypatch.setattr(additive, "randomised", lambda y, _rules, draws: (seen.append(draws), y)[1])
    rows = rows_of("a")["a"]
    ids = [f"p{i}" for i in range(60)]
    corrected = rows.y + np.where(np.arange(60) == 7, 1.0, 0.0)
    rows = replace(rows, row_keys=row_keys(ids, rows.y, b"s"), target="price")

    begun({"a": rows}, NUMBERS)
    begun({"a": rows}, replace(NUMBERS, noise=0.02))
    begun({"a": replace(rows, y=corrected, row_keys=row_keys(ids, corrected, b"s"))}, NUMBERS)
    begun({"a": replace(rows, target="cost")}, NUMBERS)
    begun({"a": replace(rows, salt=b"of another site")}, NUMBERS)
    begun({"a": rows}, replace(NUMBERS, label_epsilon=3.999))
    begun({"a": rows}, replace(NUMBERS, label_range=(-3.0, 3.001)))

    first, again, after, *others = seen
    assert (first == again).all()
    assert np.flatnonzero((first != after).all(axis=1)).tolist() == [7]
    for other in others:
        assert (first != other).all()


@pytest.mark.parametrize(
    ("epsilon", "judges"), [(8.0, True), (4.0, True), (1.0, False), (0.1, False)]
)
def test_the_gain_that_leaves_is_near_the_true_one_or_cannot_judge(
    epsilon: float, judges: bool
) -> None:
    sites = begun(yes_no(labelled=120), replace(YES_NO, label_epsilon=epsilon))
    gains = [gain_of(reply.to_all) for reply in told(sites)[-1]]
    true = [site.result().judged.verdict.gains["score"].change for site in sites]
    assert [gain is not None for gain in gains] == [judges] * 3
    if judges:
        assert gains == pytest.approx(true, abs=0.15)
