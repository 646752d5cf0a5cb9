"""The terms of an additive training, with the defaults of a federation. `coreg_core.protocol.plan` has them as an objective."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from annotated_types import Ge, Le

Kernel: TypeAlias = Literal["gaussian", "linear"]
Task: TypeAlias = Literal["regression", "classification"]


@dataclass(frozen=True)
class Additive:
    """Sites learn parts that add up, each of its own columns, from one exchange of second moments.

    Parameters
    ----------
    kernel
        of each site's features: "gaussian", or "linear" for the columns themselves.
    task
        "regression", or "classification": labels are 0 and 1 at every site, and models state probabilities. The training is the
        same, least squares on the labels.
    rows_per_feature
        labelled rows for each feature of a site; a site has at most 30.
    noise
        deviation of the noise on opened entries, for features whose largest row norm is 1.
    label_noise
        deviation of the noise on disclosed labels, in left-out errors of the site's local model (root mean square).
    least_labels, least_rows
        fewest labels of a site that sends any, and of all sites together. Training in memory has no such limit.
    """

    kernel: Kernel = "gaussian"
    task: Task = "regression"
    rows_per_feature: Annotated[int, Ge(5), Le(1000)] = 10
    noise: Annotated[float, Ge(0), Le(1)] = 0.01
    label_noise: Annotated[float, Ge(0), Le(10)] = 0.5
    least_labels: Annotated[int, Ge(3), Le(100_000)] = 20
    least_rows: Annotated[int, Ge(10), Le(100_000)] = 150


IN_MEMORY = Additive(rows_per_feature=8, noise=0.0, label_noise=0.0)
