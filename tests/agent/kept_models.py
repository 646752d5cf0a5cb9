"""Model files of each release are kept as test data, since a later release reads them.

    cd tests/agent && PYTHONPATH=.. python kept_models.py models/0.5

writes those of this release: before its number is raised, or once its format has changed.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from trained_sites import trained

from coreg_core.agreement.views import KernelExpansion
from coreg_core.kernels import Gaussian
from site_agent.data.tables import read_table
from site_agent.models.file import ModelFile, load_model, save_model

KEPT = Path(__file__).parent / "models"


def _agreement(like: ModelFile, rows: Path) -> ModelFile:
    """Of an agreement, on the columns of another model."""
    X = like.features(read_table(rows))
    function = KernelExpansion(Gaussian(1.5), X[:4], np.array([0.3, -1.7, 0.2, 1.0]))
    return ModelFile(
        function=function,
        preprocessing=like.preprocessing,
        target=like.target,
        shift=10.0,
        divisor=2.0,
        site=like.site,
        run="run-2",
        stop="CONVERGED",
        coupling=0.1,
        plan={"seed": 0},
    )


def keep(folder: Path) -> None:
    folder.mkdir(parents=True)
    with TemporaryDirectory() as name:
        numbers = trained(Path(name), labels=(45, 20, 2))
        (joined, local, *_), _ = numbers.write("a")
        rows = Path(name) / "a-judged.csv"
        lines = rows.read_text().splitlines()
        (folder / "rows.csv").write_text("\n".join(lines[:20]) + "\n")
        for kind, path in {"joined": joined, "local": local}.items():
            (folder / f"{kind}.coreg").write_bytes(path.read_bytes())
        save_model(folder / "agreement.coreg", _agreement(load_model(joined), rows))
    with TemporaryDirectory() as name:
        yes_no = trained(Path(name), labels=(45, 20, 2), values=("no", "yes"))
        (joined, *_), _ = yes_no.write("a")
        (folder / "yes-no.coreg").write_bytes(joined.read_bytes())
    predictions = {
        path.stem: load_model(path).predict(read_table(folder / "rows.csv")).tolist()
        for path in sorted(folder.glob("*.coreg"))
    }
    (folder / "predictions.json").write_text(json.dumps(predictions, indent=1) + "\n")


if __name__ == "__main__":
    keep(Path(sys.argv[1]))
