"""Answers to one question, added: in integers, in the clear or under masks, and so to the same bits.

What is added is the answers' fixed point (`coreg_core.masking`), at the exponents that the question went out with. Knows
messages and layouts; no site by name, no schedule and no key: what a masked answer says, nobody here can tell.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from coreg_core.additive.question_types import NOTHING
from coreg_core.masking.fixed_point import WORD, fits
from coreg_core.masking.sums import Layout, Words, add_summand, add_words, opened
from coreg_core.protocol.messages import Masked, Prediction, Share
from coreg_core.protocol.vectors import Vector

Answer: TypeAlias = Prediction | Share | Masked


def masked_fault(layout: Layout, answer: Answer) -> str | None:
    """Why a masked answer cannot be one to a question of that layout: all that can be told of it."""
    if not isinstance(answer, Masked):
        return (
            "an answer in the clear, where the plan has sums alone. It was not used; the site's operator should know."
        )
    if answer.words.values.size != layout.size:
        return (
            f"{answer.words.values.size} masked words to question {answer.question}, expected {layout.size}. "
            "Check that its unlabelled file lists the shared instances."
        )
    return None


def clear_fault(answer: Prediction | Share, exponents: Sequence[int], n_sites: int) -> str | None:
    """Why an answer in the clear, of the right shape, cannot be summed."""
    if answer.values is None or fits(answer.values.values, exponents, n_sites):
        return None
    return (
        f"its answer to question {answer.question} is larger than any that fits what it stated when it accepted the plan. "
        "Check its features."
    )


def summed(
    layout: Layout, answers: Sequence[Answer], exponents: Sequence[int]
) -> tuple[Vector | None, tuple[float, ...]]:
    """The sums of vectors and of scalars.

    Raises
    ------
    BadData
        the masks do not cancel.
    """
    words = np.zeros(layout.size, dtype=WORD)
    for answer in answers:  # one at a time, and each onto the same words: there may be a thousand
        _add(layout, words, answer, exponents, len(answers))
    values, scalars = opened(layout, words, exponents)
    return (Vector(values) if values.size else None), scalars


def _add(layout: Layout, words: Words, answer: Answer, exponents: Sequence[int], n_sites: int) -> None:
    match answer:
        case Masked(words=masked):
            add_words(layout, words, masked.values)
        case Prediction(values=values):
            add_summand(layout, words, values.values, (), exponents, n_sites)
        case Share(scalars=scalars, values=shared):
            add_summand(layout, words, NOTHING if shared is None else shared.values, scalars, exponents, n_sites)
