"""Three agents and a coordinator under `serve`, over mutual TLS, run after run: open descriptors
and memory.

`python benchmarks/soak.py --runs 1000` runs so many studies (ten or more in turn, some
overlapping), and prints each process's resident memory and descriptors every 5 % of the way. With
``--kills`` a process is killed and started again every so many runs; with ``--minutes`` they are
spread over that time, as a month's would be.
"""

import signal
import time
from pathlib import Path

from harness import (
    arguments,
    folder,
    memory,
    show,
)  # first: it finds the helpers of tests/e2e

# isort: split
from federation import SITES, federation, until

from coordinator.config.federation_toml import read_configuration
from coordinator.config.study_toml import study_plan
from coordinator.store.runs import RunStore
from coreg_wire.clock import timestamp

STUDIES = 10
AHEAD = 4  # runs in the queue at once


def used(process):
    """Resident memory in MiB, and open descriptors."""
    resident = memory("VmRSS", process.pid) / 2**20
    return round(resident, 1), len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def soak(place, runs, kills, minutes):
    killed = 0
    studies = max(STUDIES, runs // 100)  # an agent limits its answers to one plan on one data set
    with federation(place, "aggregation = 'plaintext'") as fed:
        serving = {"coordinator": fed.serve(), **{site: fed.stays(site) for site in SITES}}
        for number in range(studies):
            fed.study(f"study-{number}", coupling=0.05 * (1 + number))
        configuration = read_configuration(place / "co" / "federation.toml")
        queue = RunStore(place / "runs.sqlite")
        began = time.monotonic()
        done = []
        for number in range(runs):
            time.sleep(max(0.0, began + 60.0 * minutes * number / runs - time.monotonic()))
            plan = study_plan(place / f"study-{number % studies}.toml", configuration)
            queue.submit(plan, timestamp())
            done.append(plan.run)
            if len(done) >= AHEAD:
                until(lambda first=done[-AHEAD]: fed.over(first), 300)
            if (number + 1) % max(1, runs // 20) == 0:
                sample = {"runs": number + 1, "seconds": round(time.monotonic() - began, 1)}
                sample |= {name: used(process) for name, process in serving.items()}
                show(sample)
            if kills and number % kills == kills - 1:
                name = list(serving)[killed % len(serving)]
                serving[name].send_signal(signal.SIGKILL)
                serving[name].wait()
                serving[name] = fed.serve() if name == "coordinator" else fed.stays(name)
                killed += 1
        until(lambda: fed.over(*done[-AHEAD:]), 300)
        queue.close()
        stops = [fed_run["stop"] for fed_run in fed.runs()]
    counted = {stop: stops.count(stop) for stop in sorted(set(stops))}
    return {"runs": runs, "killed": killed, "stops": counted}


def main():
    options = arguments(__doc__, runs=1000, kills=0, minutes=0.0)
    with folder() as place:
        show(soak(place, options.runs, options.kills, options.minutes))


if __name__ == "__main__":
    main()
