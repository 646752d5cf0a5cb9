r"""Several block GMRES in one round: columns whose operators differ (folds, multipliers) share rounds and sums, but no
space.

One question holds the columns of every running member, one after another. The sum of the answers is split the same way.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coreg_core.additive.question_types import Answer, Ask, Question
from coreg_core.additive.solver.block_gmres import BlockGmres, GmresState, Space
from coreg_core.errors import UsageError


@dataclass(frozen=True)
class Lockstep:
    """Members that run side by side and end independently."""

    members: tuple[BlockGmres, ...]

    def start(self, n_unlabelled: int, space: Space | None = None) -> tuple[GmresState, ...]:
        """Every member from x = 0, with the space that another solve left."""
        return tuple(member.start(n_unlabelled, space=space) for member in self.members)

    def _running(self, states: Sequence[GmresState]) -> list[tuple[int, Question]]:
        return [
            (j, member.query(state))
            for j, (member, state) in enumerate(zip(self.members, states, strict=True))
            if not member.finished(state)
        ]

    def query(self, states: Sequence[GmresState]) -> Question:
        """One question for all that run. All begin with the affine one, so parts never differ."""
        asked = [question for _, question in self._running(states)]
        if len({question.part for question in asked}) != 1:
            raise UsageError("members of one lockstep ask affine and linear questions at once; start them together.")
        return Question(
            Ask.FIXED_POINT,
            np.concatenate([question.targets for question in asked], axis=1),
            tuple(column for question in asked for column in question.columns),
            asked[0].part,
            asked[0].step,
            asked[0].scalars,
        )

    def step_with(self, states: Sequence[GmresState], answer: Answer) -> tuple[GmresState, ...]:
        """One round of every member that runs."""
        out, offset = list(states), 0
        for j, question in self._running(states):
            width = question.targets.shape[1]
            part = np.ascontiguousarray(answer.vectors[:, offset : offset + width])
            out[j] = self.members[j].step_with(states[j], replace(answer, vectors=part))
            offset += width
        return tuple(out)

    def finished(self, states: Sequence[GmresState]) -> bool:
        """Every member is done."""
        return all(member.finished(state) for member, state in zip(self.members, states, strict=True))
