"""How often a site's true change is within the standard errors of its forecast, on the partitions
of the benefit study.

    python benchmarks/forecasts.py --data DIR [--draws 2]

Trained with a federation's default noise, for joined models and scores;
`coreg_core.additive.check.WIDER` was chosen on the sets that defaults were chosen on. A minute or
two.
"""

from pathlib import Path

import numpy as np
from harness import arguments

from benchmarks.benefit.study import CHOSEN_ON, JUDGED_ON, drawn
from coreg_core.objectives.additive import Additive
from coreg_core.threads import pin_threads
from coreg_sim.benefit.trial import TrainedPartition


def errors(folder: Path, sets: tuple[str, ...], regime: str, draws: int) -> np.ndarray:
    """|forecast − true change| in stated standard errors, of all sites and both methods."""
    ratios = []
    for name in sets:
        for draw in range(draws):
            if (found := drawn(folder, name, regime, draw)) is None:
                continue
            federation = TrainedPartition(found, draw, rules=Additive())
            for method, predicted in (
                ("joined", federation.joined),
                ("score", federation.scores()),
            ):
                true = federation.changes(predicted)
                gains = [site.verdict.gains[method] for site in federation.trained.sites]
                ratios += [
                    abs(g.change - t) / g.standard_error
                    for g, t in zip(gains, true, strict=True)
                    if g.standard_error > 0
                ]
    return np.array(ratios)


def main() -> None:
    options = arguments(__doc__, data="data", draws=2)
    pin_threads(1)
    for title, sets in (("defaults chosen on", CHOSEN_ON), ("judged on", JUDGED_ON)):
        for regime in ("n50", "n100", "n200"):
            z = errors(Path(options.data).resolve(), sets, regime, options.draws)
            shares = ", ".join(f"{100 * np.mean(z < k):.0f} % within {k}" for k in (1, 2))
            print(f"{title}, {regime}: {len(z)} forecasts, {shares} standard errors")


if __name__ == "__main__":
    main()
