"""coordinator/machine/notices.py: every notice is one line for a person and one JSON object."""

import json
import math
from inspect import getmembers, isfunction, signature
from string import Formatter
from typing import Any, get_type_hints

import pytest
from machine.stepwise import RUN

from coordinator.machine import notices as n
from coordinator.machine.notices import SENTENCES, NoticeName
from coordinator.machine.records import StepDone, Timing
from coreg_core.messages import Report
from coreg_core.outcomes import Notice, Outcome

FUNCTIONS = {
    name: f
    for name, f in getmembers(n, isfunction)
    if f.__module__ == n.__name__ and name[0] != "_" and name != "notice"
}
VALUES: dict[Any, Any] = {
    str: "b",
    int: 3,
    float: math.inf,
    bool: True,
    tuple[str, ...]: ("a", "b"),
    list[str]: ["a", "b"],
}
VALUES |= {Outcome: Outcome.STALLED, Timing: Timing(), StepDone: StepDone(1, 0, 3, Report())}


def is_one_line_and_one_json_object(notice: Notice) -> None:
    assert "\n" not in notice.text
    told: dict[str, Any] = json.loads(json.dumps(notice.to_dict(), allow_nan=False))
    assert told["event"] == notice.name
    assert told["level"] == notice.level
    assert told.get("text", "") == notice.text
    assert told.get("run", "") == notice.run
    assert told.get("site", "") == notice.site
    assert set(notice.fields) <= set(told) - {"event", "level", "run", "site", "text"}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_notice_is_one_line_and_one_json_object(name: str) -> None:
    hints = get_type_hints(FUNCTIONS[name])
    notice: Notice = FUNCTIONS[name](
        **{each: VALUES[hints[each]] for each in signature(FUNCTIONS[name]).parameters}
    )
    if name == "step_answered":
        assert notice.name == "round"
    else:
        assert notice.name == name
    is_one_line_and_one_json_object(notice)


def test_each_notice_has_a_sentence_or_a_function() -> None:
    given_their_text = {
        NoticeName.CERTIFICATE_WARNING,
        NoticeName.STOPPED,
        NoticeName.REPEATED,
        NoticeName.ROUND,  # by `step_answered`
    }
    of_functions = {NoticeName(name) for name in FUNCTIONS if name != "step_answered"}
    assert set(NoticeName) == {*SENTENCES} | of_functions | given_their_text


@pytest.mark.parametrize("kind", SENTENCES)
def test_a_sentence_names_its_fields(kind: NoticeName) -> None:
    names = {name for _, name, *_ in Formatter().parse(SENTENCES[kind]) if name}
    fields: dict[str, Any] = dict.fromkeys(names - {"site", "until"}, ("b", "c"))
    if "until" in names:
        fields["seconds"] = math.inf
    notice = n.notice(kind, "r", "a", **fields)
    is_one_line_and_one_json_object(notice)
    if fields:
        assert "b, c" in notice.text
    if "until" in names:
        assert notice.text.endswith("(no timeout)")


def test_a_step_has_the_figures_of_its_worst_column() -> None:
    step = StepDone(3, 1, 2, Report("", "", 4, True, (0.1, 1.0), (-1.0,)), "grid")
    assert n.step_answered(RUN, step, Timing(0.25, 100, 200)).fields == {
        "step": 3, "attempt": 1, "round": 4, "answered": 2, "phase": "grid", "verified": True,
        "residual": 1.0, "gap": None,
        "seconds": 0.25, "bytes_sent": 100, "bytes_received": 200,
    }  # fmt: skip
