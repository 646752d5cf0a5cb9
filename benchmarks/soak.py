"""Three agents and a coordinator under `serve`, over mutual TLS, run after run: what stays open, and what memory they take.

`python benchmarks/soak.py --runs 1000 --write` runs so many studies (ten of them in turn, some overlapping), reads each process's
resident memory and descriptors every 5 % of the way, and writes benchmarks/results/soak.json. With ``--kills`` a process
is killed and started again every so many runs; with ``--minutes`` they are spread over that time, as a month's would be.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "proto"), str(ROOT / "tests" / "e2e")]

from federation import SITES, until, well  # noqa: E402
from standing import standing  # noqa: E402

from coordinator.config.federation_toml import read_configuration  # noqa: E402
from coordinator.config.study_toml import study_plan  # noqa: E402
from coordinator.driver import utc_now  # noqa: E402
from coordinator.store.queue import Queue  # noqa: E402

STUDIES = 10
AHEAD = 4  # runs in the queue at once


def used(process):
    """Resident memory in MiB, and open descriptors."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return round(int(kilobytes) / 1024, 1), len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def soak(folder, runs, kills, minutes):
    samples, killed = [], 0
    with standing(folder) as fed:
        # An agent answers so often and no more to one plan on one data set; here each plan comes a hundred times.
        fed.policy(
            "either.toml",
            "most_questions = 1000000\nruns_a_day = 1000000\nquestions_a_day = 100000000\nanswers = 'clear'",
        )
        serving = {"coordinator": fed.serve(), **{site: fed.stays(site) for site in SITES}}
        for number in range(STUDIES):
            fed.study(f"study-{number}", coupling=0.05 * (1 + number))
        configuration = read_configuration(folder / "co" / "federation.toml")
        queue, began, done = Queue(folder / "runs.sqlite"), time.monotonic(), []
        for number in range(runs):
            time.sleep(max(0.0, began + 60.0 * minutes * number / runs - time.monotonic()))
            plan = study_plan(folder / f"study-{number % STUDIES}.toml", configuration)
            queue.submit(plan, utc_now())
            done.append(plan.run)
            if len(done) >= AHEAD:
                until(lambda first=done[-AHEAD]: fed.over(first), 300)
            if (number + 1) % max(1, runs // 20) == 0:
                sample = {"runs": number + 1, "seconds": round(time.monotonic() - began, 1)}
                sample |= {name: used(process) for name, process in serving.items()}
                samples.append(sample)
                print(json.dumps(sample), flush=True)
            if kills and number % kills == kills - 1:
                name = list(serving)[killed % len(serving)]
                serving[name].send_signal(signal.SIGKILL)
                serving[name].wait()
                serving[name] = fed.serve() if name == "coordinator" else fed.stays(name)
                killed += 1
        until(lambda: fed.over(*done[-AHEAD:]), 300)
        queue.close()
        stops = [fed_run["stop"] for fed_run in fed.runs()]
        verified = well("coreg-coordinator", "verify", "--store", "runs.sqlite", cwd=folder).strip()
    counted = {stop: stops.count(stop) for stop in sorted(set(stops))}
    return {"runs": runs, "killed": killed, "stops": counted, "verify": verified, "samples": samples}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=0, help="kill a process every so many runs; 0: none")
    parser.add_argument("--minutes", type=float, default=0.0, help="spread the runs over so long; 0: one after another")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "soak"
        place.mkdir()
        found = soak(place, options.runs, options.kills, options.minutes)
    print(json.dumps({key: found[key] for key in ("runs", "killed", "stops", "verify")}))
    if options.write:
        path = ROOT / "benchmarks" / "results" / "soak.json"
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(path)


if __name__ == "__main__":
    main()
