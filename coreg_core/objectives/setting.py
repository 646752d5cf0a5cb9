"""What every objective states of itself, and what it reads of the plan around it.

Values and text only: commands stay light.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from coreg_core.shapes import Shape
from coreg_core.terms import Iteration, Membership, Privacy

Labels: TypeAlias = Literal["none", "in the scalars", "in the vectors"]
Needs: TypeAlias = Literal["rows", "ids", "batch"]
KEYS = "keys"  # the question of step 0 in a sealed run
RUNS = 100  # attempts at a plan on one data set, over all its runs


@dataclass(frozen=True)
class Kind:
    """A kind of question: the run's phase, what an answer discloses, where it depends on labels."""

    phase: str
    discloses: str
    labels: Labels = "none"


@runtime_checkable
class Setting(Protocol):
    """A plan without its objective."""

    @property
    def membership(self) -> Membership: ...
    @property
    def iteration(self) -> Iteration: ...
    @property
    def privacy(self) -> Privacy: ...
    @property
    def sites(self) -> tuple[str, ...]: ...
    @property
    def masked(self) -> bool: ...


class Statement:
    """What an objective states of itself, with the usual answers."""

    name: ClassVar[str]  # in files and on the wire
    called: ClassVar[str]  # in sentences, with its article
    needs: ClassVar[Needs] = "rows"  # of a site
    questions: ClassVar[Mapping[str, Kind]]
    attempts: ClassVar[int] = 10  # of a run at most
    one_set: ClassVar[bool] = True  # its sums on the same instances are over one set of sites
    usual: ClassVar[str] = "some dozens"  # answers that a run needs

    def fault(self, plan: Setting) -> str | None:
        """Why the plan's terms do not fit together, or None."""
        if plan.masked:
            return None
        return f'aggregation="plaintext": {self.called} needs sealed sums.'

    def target_fault(self, positive: str) -> str | None:  # noqa: ARG002
        """Why a site that declares this value of a yes/no target cannot train, or None."""
        return None

    def shape(self, kind: str, shared: int, sites: tuple[str, ...]) -> Shape:
        """The bound of an answer of that kind; ``shared``: instances, ``sites``: the members."""
        raise NotImplementedError

    def most_answers(self, plan: Setting) -> int:  # noqa: ARG002
        """The most answers of a site to one plan on one set of instances, over all its runs."""
        return RUNS * len(self.questions)

    def method(self, plan: Setting) -> str:
        """What is computed, as an operator reads it."""
        raise NotImplementedError

    def leaves(self, shared: int) -> str:
        """What a site sends."""
        raise NotImplementedError

    def computable(self, plan: Setting, both: int) -> str:
        """What members can compute from it; ``both``: labelled rows that are shared too."""
        raise NotImplementedError
