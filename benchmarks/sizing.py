"""How large a machine a site needs: memory and processor seconds to factor and to answer, and bytes a round.

    python benchmarks/sizing.py [--write]

Each row in a process of its own, which factors a site's data as the agent does, answers one question in one column, and tells its
peak memory beyond what it had after its imports. The bytes are of the frames that carry a question and its masked answer, as
`coreg_wire.transport.codec` makes them. `--write` puts it into docs/sizing.json, from which `tools/docs.py` makes the
page's table.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = [
    ("exact", 200, 1_000),
    ("exact", 200, 4_000),
    ("exact", 200, 8_000),
    ("semi-parametric", 500, 10_000),
    ("semi-parametric", 500, 100_000),
    ("semi-parametric", 2_000, 100_000),
]
FEATURES = 10


def peak() -> int:
    """Bytes of resident memory at most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measured(form: str, n: int, m: int) -> dict[str, float]:
    import numpy as np

    from coreg_core.agreement.columns import Column
    from coreg_core.protocol.messages import Ask, Masked, Vector, Words
    from coreg_core.protocol.plan import Agreement
    from coreg_wire.transport.codec import coordinator_message_to_frames, site_message_to_frames
    from site_agent.machine.factoring import factor
    from site_agent.machine.site_data import PrivateData

    rng = np.random.default_rng(0)
    data = PrivateData(rng.normal(size=(n, FEATURES)), rng.normal(size=n), rng.normal(size=(m, FEATURES)), "")
    before, began = peak(), time.process_time()
    view = factor(Agreement(form=form), data, data.y - data.y.mean())
    weights, targets = np.array([0.06]), rng.normal(size=(m, 1))
    view.respond(targets, weights)  # the first answer makes the factor of its weight
    factored = time.process_time() - began
    targets = rng.normal(size=(m, 1))
    began = time.process_time()
    view.respond(targets, weights)
    answered = time.process_time() - began
    ask = Ask("run", 0, 0, "affine", (Column(0.01, 0.06),), True, Vector(targets))
    masked = Masked("run", 0, 0, Words(np.zeros(m, dtype=np.uint64)))  # a word a number
    frames = [*coordinator_message_to_frames(ask), *site_message_to_frames(masked)]
    return {
        "memory": peak() - before,
        "factor_seconds": factored,
        "answer_seconds": answered,
        "round_bytes": sum(map(len, frames)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="into docs/sizing.json")
    options = parser.parse_args()
    if options.case:
        form, n, m = options.case.split(",")
        print(json.dumps(measured(form, int(n), int(m))))
        return
    rows = []
    for form, n, m in CASES:
        done = subprocess.run(
            [sys.executable, __file__, "--case", f"{form},{n},{m}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=500,
        )
        rows.append({"form": form, "labelled": n, "shared": m, **json.loads(done.stdout)})
        print(json.dumps(rows[-1]))
    if options.write:
        found = {"machine": f"{platform.machine()}, Python {platform.python_version()}", "rows": rows}
        (ROOT / "docs" / "sizing.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
