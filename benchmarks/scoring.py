"""What scoring together costs: 10⁶ instances beside a bare echo of as many bytes, and a batch of ten in network round trips.

    python benchmarks/scoring.py [--json] [--size 1000000] [--repeats 5]

Both machines, the codec, the agents' connections and ledgers over mutual TLS on loopback, as in service; the sites' parts are on
hand (what a model takes is measured by `predict`). A scoring's bytes are one vector up from each of 4 sites and one down: those
of one round of benchmarks/round_trip.py, whose bare echo is the floor. For round trips a proxy in front of the coordinator holds
every byte back for 50 ms in each direction, and what a batch of ten takes in open sessions, from the plan's sending until every
site has its scores, is given in units of there and back: one of them is the sum's.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from round_trip import SITES, credentials_of, floor, identities

from coordinator.authority.authorised import Authorised
from coordinator.authority.pki import load_server
from coordinator.driver import NoMemory, drive
from coordinator.machine.federation import begin
from coordinator.machine.notices import PlanSent, QuestionAnswered
from coordinator.machine.phases import Clocks
from coordinator.machine.state import Recorded
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Membership, Plan, Privacy, Scoring
from coreg_sim.federation.simulate import Steps
from coreg_wire.identity.credentials import server_credentials
from site_agent.ledger import Ledger
from site_agent.machine.scoring import Batch
from site_agent.machine.site import Site
from site_agent.session.dial import Dial, Watcher, take_part

NAMES = tuple(f"site-{v}" for v in range(SITES))
HELD_BACK = 0.05


class Timed(Steps):
    """When the plan went out, and when every site had its scores, by the clock that all processes share."""

    def __init__(self):
        super().__init__()
        self.began, self.summed, self.delivered = 0.0, 0.0, 0.0

    def notice(self, notice, measured):
        super().notice(notice, measured)
        if isinstance(notice, PlanSent):
            self.began = time.monotonic()
        elif isinstance(notice, QuestionAnswered):
            self.summed = measured.seconds


async def proxy(port: int) -> asyncio.Server:
    """Every byte is held back for a while, however many are under way."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                loop.call_later(HELD_BACK, writer.write, data)
            loop.call_later(HELD_BACK, writer.close)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("localhost", port)
        with contextlib.suppress(asyncio.CancelledError):  # the agents are done
            await asyncio.gather(carry(reader, back), carry(there, writer))

    return await asyncio.start_server(connected, "localhost", 0)


async def agents(folder: Path, port: int, m: int, *, slow: bool) -> None:
    server = await proxy(port) if slow else None
    dialled = server.sockets[0].getsockname()[1] if server is not None else port

    async def one(v: int) -> None:
        part = np.random.default_rng(v).normal(size=m)
        batch = Batch(part, np.zeros(m, dtype=bool), 0.0, 0.0, "trained", "additive", NAMES, "digest")
        ledger = Ledger(folder / f"ledger-{v}.jsonl")
        dial = Dial(f"localhost:{dialled}", credentials_of(folder, v), 30)

        def deliver(_result) -> None:
            (folder / f"delivered-{v}").write_text(repr(time.monotonic()))

        await take_part(Site(NAMES[v], batch), ledger, dial, Watcher(lambda _: None, lambda _: None, deliver))
        ledger.close()

    await asyncio.gather(*(one(v) for v in range(SITES)))
    if server is not None:
        server.close()


def run_agents(folder: Path, port: int, m: int, slow: bool) -> None:
    pin_threads(1)
    asyncio.run(agents(folder, port, m, slow=slow))


def scored(folder: Path, m: int, *, slow: bool) -> Timed:
    """One scoring to its end."""
    files = load_server(folder / "co")
    secured = server_credentials(files.key_pem, files.certificate_pem, files.ca_pem)
    transport = GrpcServer("localhost:0", secured, Authorised(folder / "co").check)
    run, terms = f"scores-{time.monotonic_ns()}", Scoring("trained")
    plan = Plan(run, "bench", Membership(NAMES, SITES), terms, privacy=Privacy(answers="clear"))
    timed, processes = Timed(), []

    def start(_emit) -> None:
        process = multiprocessing.get_context("spawn").Process(
            target=run_agents, args=(folder, transport.port, m, slow)
        )
        process.start()
        processes.append(process)

    asyncio.run(drive(begin(Recorded(plan), Clocks()), transport, NoMemory(), timed, on_start=start))
    for process in processes:
        process.join(20)
    timed.delivered = max(float((folder / f"delivered-{v}").read_text()) for v in range(SITES))
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--size", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    pin_threads(1)
    with tempfile.TemporaryDirectory(prefix="coreg-bench-") as name:
        folder = Path(name)
        identities(folder)
        bare = floor(folder, options.size, options.repeats + 3)
        large = [scored(folder, options.size, slow=False) for _ in range(options.repeats)]
        small = [scored(folder, 10, slow=True) for _ in range(options.repeats)]
    told = {
        "m": options.size,
        "echo_seconds": bare,
        "sum_seconds": statistics.median(t.summed for t in large),
        "plan_to_scores_seconds": statistics.median(t.delivered - t.began for t in large),
        "ten_round_trips": statistics.median((t.delivered - t.began) / (2 * HELD_BACK) for t in small),
    }
    if options.json:
        print(json.dumps(told))
        return
    print(f"a bare echo of {told['m']:,} numbers, 4 sites: {bare:.3f} s")
    print(
        f"the sum of as many parts: {told['sum_seconds']:.3f} s; from plan to scores {told['plan_to_scores_seconds']:.3f} s"
    )
    print(
        f"a batch of ten, {2000 * HELD_BACK:g} ms there and back: {told['ten_round_trips']:.2f} round trips from plan to scores, "
        "one of them the sum's"
    )


if __name__ == "__main__":
    main()
