r"""What sums over different sets of sites tell together: answers are linear, and linear algebra does not forget.

A sum over one site fewer, or one more, at any target, in this run or another, is that site's answer: exactly where the
weights are equal, nearly where they are near. So are combinations, S(a,b,c) + S(c,d,e) − S(a,b,d,e) = 2 S(c) among
them, of which no site sees every set. So a site is summed with one set of sites on a set of instances, and with no
other: where every site holds to that, the sets have no site in common, and no combination of them tells a part of one.
Weights are not looked at: a near one tells nearly as much.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Lock


@dataclass(frozen=True)
class SummedWith:
    """A set of sites under whose sum an answer went out; ``may_change``: the plan said so, so every one of them had agreed."""

    sites: frozenset[str]
    may_change: bool


def objection(now: frozenset[str], earlier: Iterable[SummedWith], *, consents: bool) -> str | None:
    """Why this site does not answer under a sum over ``now``; ``consents`` is its policy's word (membership_changes)."""
    before = [e for e in earlier if e.sites != now and not (consents and e.may_change)]
    if not before:
        return None
    changed = min((e.sites for e in before), key=lambda s: (len(s ^ now), sorted(s)))
    gone, come = ", ".join(sorted(changed - now)) or "nobody", ", ".join(sorted(now - changed)) or "nobody"
    apart = sorted(changed ^ now)
    tells = f"is the answer of {apart[0]} alone" if len(apart) == 1 else f"is of {', '.join(apart)} alone"
    return (
        f"this site was summed with {', '.join(sorted(changed))} on these instances, and now with {', '.join(sorted(now))} "
        f"({gone} gone, {come} come): the difference of such sums {tells}, in whatever run they are taken. Go on "
        "with the same sites; or start from the first answer under a plan with [privacy] membership_changes = true, which every "
        "site's policy has to allow in the same words."
    )


@dataclass
class Promises:
    """The sets that an agent's runs are about to be summed with: several may be under way, and none has answered yet."""

    _lock: Lock = field(default_factory=Lock, repr=False)
    _made: dict[tuple[str, str], SummedWith] = field(default_factory=dict)

    def judge(
        self,
        run: str,
        ids_digest: str,
        now: SummedWith,
        recorded: Callable[[], Iterable[SummedWith]],
        *,
        consents: bool,
    ) -> str | None:
        """`objection` to a set by what is on record and what other runs were promised; without one it is promised to this run."""
        with self._lock:
            others = [s for (other, ids), s in self._made.items() if other != run and ids == ids_digest]
            reason = objection(now.sites, [*recorded(), *others], consents=consents)
            if reason is None:
                self._made[run, ids_digest] = now
            return reason

    def release(self, run: str) -> None:
        """A run is over: what it answered is on record."""
        with self._lock:
            self._made = {key: s for key, s in self._made.items() if key[0] != run}
