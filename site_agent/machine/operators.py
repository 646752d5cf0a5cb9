r"""The rule of one operator on a set of shared instances, under members_may_learn = "sums".

Every answer of a run is an affine function of its target, R_v t + m_v, and R_v follows from the rows, the terms and the
members. Single R_v cannot be derived from one ΣR_v, but they can from two on the same instances
(docs/research/mathematics.md). Therefore an agent with that policy records its operator before its first answer. It
refuses every other operator on sets that share an instance with an earlier one.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import UInt64

from coreg_core.protocol.plan import Plan
from site_agent.machine.site_data import PrivateData


@dataclass(frozen=True, eq=False)
class Operator:
    """``digest`` identifies it, keyed with this site's secret; ``instances``: sorted keyed names of the shared instances."""

    digest: str
    instances: UInt64[np.ndarray, " m"]


def operator_of(plan: Plan, data: PrivateData, sites: Sequence[str]) -> Operator:
    """The operator of this site's answers under the plan. It covers the labels: a changed label gives another operator."""
    digest = hashlib.sha256(data.salt + b"operator")
    for array in data.arrays:
        digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    digest.update(json.dumps([plan.iteration.name, asdict(plan.objective), list(sites)], sort_keys=True).encode())
    names = (hashlib.sha256(data.salt + b"instance" + name.encode()).digest()[:8] for name in data.ids)
    return Operator(digest.hexdigest(), np.sort(np.frombuffer(b"".join(names), dtype="<u8")))


def objection(now: Operator, earlier: Iterable[Operator]) -> str | None:
    """The reason against answers of this operator, or None."""
    for known in earlier:
        if known.digest == now.digest:
            continue
        common = len(np.intersect1d(known.instances, now.instances))
        if common:
            return (
                f'against this site\'s policy (members_may_learn = "sums"): {common} of these instances were summed before with '
                "other labels, rows, terms or sites, and two such sums reveal single sites' parts. Use other instances, or the "
                "earlier terms and data. Or this site's operator sets members_may_learn = 'operators'."
            )
    return None
