r"""One operator on a set of shared instances: what a member that reads the sums may not get a second one of.

Every answer of a run is an affine function of its target, R_v t + m_v, and R_v follows from the rows, the terms and the
members. Of one ΣR_v no linear algebra tells single R_v; of two on the same instances it does
(docs/research/mathematics.md). So an
agent whose policy says members_may_learn = "sums" writes down what its operator is, before its first answer, and answers
for no other one on instances of which any was in an earlier set.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from jaxtyping import UInt64

from coreg_core.protocol.plan import Plan, Scoring
from site_agent.machine.scoring import Batch
from site_agent.machine.site_data import PrivateData


@dataclass(frozen=True, eq=False)
class Operator:
    """``digest`` names it, under this site's secret; ``instances`` are the keyed names of the shared instances, sorted."""

    digest: str
    instances: UInt64[np.ndarray, " m"]


def operator_of(plan: Plan, data: PrivateData | Batch, sites: Sequence[str]) -> Operator:
    """What this site's answers under the plan follow from, the labels among it: a changed label is another operator."""
    digest = hashlib.sha256(data.salt + b"operator")
    if isinstance(data, Batch):
        digest.update(data.digest_of_part)
    else:
        for array in (data.X, data.y, data.Z):
            digest.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    terms = {name: value for name, value in asdict(plan.objective).items() if name not in ("receivers", "batches")}
    kind = "scoring" if isinstance(plan.objective, Scoring) else plan.iteration.name
    digest.update(json.dumps([kind, terms, list(sites)], sort_keys=True).encode())
    names = (hashlib.sha256(data.salt + b"instance" + name.encode()).digest()[:8] for name in data.ids)
    return Operator(digest.hexdigest(), np.sort(np.frombuffer(b"".join(names), dtype="<u8")))


def objection(now: Operator, earlier: Iterable[Operator]) -> str | None:
    """Why nothing is answered for this operator, or None."""
    for known in earlier:
        if known.digest == now.digest:
            continue
        common = len(np.intersect1d(known.instances, now.instances))
        if common:
            return (
                f"against this site's policy: {common} of these instances were summed before with other labels, rows, terms or "
                "sites of this or another site, and of two such sums single sites' parts follow "
                "(members_may_learn='sums'). Use other instances, or the terms and data of then; or let this site's operator "
                "consent by members_may_learn = 'operators'."
            )
    return None
