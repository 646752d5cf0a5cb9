r"""Protection against differencing: sums over different sets of sites reveal single answers, because answers are linear.

Two sums that differ by one site reveal that site's answer, at any target and across runs: exactly for equal weights,
approximately for similar ones. Combinations do so too, for example S(a,b,c) + S(c,d,e) − S(a,b,d,e) = 2 S(c), where no
single site sees every set. Therefore a site's answers on a set of instances go into sums over one set of sites only. If
every site follows this rule, the sets are disjoint, and no combination of them reveals a part of one. The rule ignores
weights, since a similar weight reveals nearly as much.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import Lock


@dataclass(frozen=True)
class SummedWith:
    """A set of sites that an answer was summed with. ``may_change``: the plan allowed changes, so every site had agreed."""

    sites: frozenset[str]
    may_change: bool


def objection(now: frozenset[str], earlier: Iterable[SummedWith], *, consents: bool) -> str | None:
    """The reason against an answer in a sum over ``now``, or None; ``consents``: the policy's membership_changes."""
    before = [e for e in earlier if e.sites != now and not (consents and e.may_change)]
    if not before:
        return None
    changed = min((e.sites for e in before), key=lambda s: (len(s ^ now), sorted(s)))
    apart = ", ".join(sorted(changed ^ now))
    return (
        f"this site was summed with {', '.join(sorted(changed))} on these instances, and now with {', '.join(sorted(now))}. "
        f"The difference of the two sums reveals the answers of {apart} alone, also across runs. Continue with the same "
        "sites, or use other shared instances. For these instances it can no longer be allowed: membership_changes = true has "
        "to be in the first plan and in every policy (docs/how-to/add-lose-or-replace-a-site.md)."
    )


@dataclass
class Promises:
    """The sets of sites of an agent's open runs that have not answered yet; several runs can be open at once."""

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
        """`objection` to a set, given the recorded sets and those of other open runs. Without one, reserve it for this run."""
        with self._lock:
            others = [s for (other, ids), s in self._made.items() if other != run and ids == ids_digest]
            reason = objection(now.sites, [*recorded(), *others], consents=consents)
            if reason is None:
                self._made[run, ids_digest] = now
            return reason

    def release(self, run: str) -> None:
        """Drop the reservation of a run that ended: its answers are on record."""
        with self._lock:
            self._made = {key: s for key, s in self._made.items() if key[0] != run}
