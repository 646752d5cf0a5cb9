"""Search for defects in simulated time: python -m tests.storm --seeds 300.

The real daemons run over a simulated network, clock and crashes. A seed draws studies and faults:
killed processes, power cuts, wrong clocks, revoked certificates, broken and silent connections,
full disks, cancelled runs, an older store. In the end every run must have ended with the models of
a run without faults, bit for bit, or after its last attempt. Every answer that left a site must be
in its ledger. Exit code 1 if a seed breaks this.
"""

import argparse
import json
import sys
import time

from tests.storm.batches import storms


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.storm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=100, help="number of storms [100]")
    parser.add_argument(
        "--from",
        dest="first",
        type=int,
        default=0,
        help="the first seed; it gives the same storm [0]",
    )
    parser.add_argument("--jobs", type=int, default=2, help="number of processes [2]")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    asked = parser.parse_args()
    began = time.monotonic()
    count = 0
    hours = 0.0
    answers = 0
    bad = list[int]()
    for told in storms(asked.first, asked.seeds, asked.jobs):
        count = count + 1
        hours = hours + told["seconds"] / 3600
        answers = answers + told["answers"]
        if told["broken"]:
            bad.append(told["seed"])
        if asked.json:
            print(json.dumps({"event": "storm", **told}), flush=True)
        elif told["broken"]:
            print(
                f"seed {told['seed']}:\n{told['story']}\n  " + "\n  ".join(told["broken"]),
                flush=True,
            )
    took = time.monotonic() - began
    if asked.json:
        print(
            json.dumps(
                {"event": "finished", "storms": count, "broken": bad, "seconds": round(took, 1)}
            )
        )
    else:
        held = (
            f"broken: seeds {', '.join(map(str, sorted(bad)))}" if bad else "every invariant held"
        )
        print(
            f"{count} storms, {hours:.1f} simulated hours, {answers} answers, {took:.0f} s; {held}"
        )
    if bad:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
