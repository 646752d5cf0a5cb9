"""One whole round of 4 sites over mutual TLS with persistence on, against a bare grpc.aio echo in the same run.

    python benchmarks/round_trip.py [--json] [--sizes 10000 100000 1000000] [--rounds 15] [--write]

The floor: a grpc.aio server that sends each of 4 clients m doubles, in the pieces that cost least, and takes as many back, over
mutual TLS. The same with the promises kept and nothing else done: each client hashes what came and what goes, and has a line of
its own on the disk before it answers; the server adds the answers and has the sum, under a checksum, in SQLite before it sends
again.
coreg: the real driver, machine, codec, run store and agents (connection, ledger, site) with views of one linear feature, so
that computing costs next to nothing and what is measured is everything else. The four clients share one process in
both, and each of the two is measured in processes of its own: what ours asks of the allocator is not the echo's. Medians
over the rounds after the first three; CPU seconds are of both processes, a round, over the same rounds. Ratios
hold on any machine; seconds are this one's. --write keeps them in docs/performance.json.
"""

import argparse
import asyncio
import hashlib
import json
import multiprocessing
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import IO, Any

import grpc
import grpc.aio
import numpy as np

from coordinator.authority.authorised import Authorised
from coordinator.authority.pki import create_authority, load_server, sign_request
from coordinator.driver import drive, utc_now
from coordinator.machine.federation import begin
from coordinator.machine.notices import QuestionAnswered
from coordinator.machine.phases import Clocks
from coordinator.machine.state import Recorded
from coordinator.store.runs import RunStore
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.numerics.allocation import keep_freed_memory
from coreg_core.numerics.threads import pin_threads
from coreg_core.protocol.plan import Agreement, Answers, Iteration
from coreg_sim.federation.masks import simulated_keys
from coreg_sim.federation.problems import Problem
from coreg_sim.federation.simulate import Steps, plan_for
from coreg_wire.identity.credentials import client_credentials, server_credentials
from coreg_wire.transport.codec import LARGEST_PIECE
from coreg_wire.transport.service import channel_options
from site_agent.identity.identity import check_identity, enrol, install
from site_agent.ledger import Ledger
from site_agent.machine.site import Site, Terms
from site_agent.machine.site_data import PrivateData
from site_agent.session.dial import Dial, Watcher, take_part

SITES = 4


WARM_UP = 3
FIGURES = Path(__file__).parents[1] / "docs" / "performance.json"


class Clock:
    """Wall seconds a round, and CPU seconds of this process and the clients' from the end of the warm-up on."""

    def __init__(self):
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.client = 0

    def round(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.cpu.append(time.process_time() + cpu_of(self.client))

    def figures(self) -> dict[str, float]:
        spent = (self.cpu[-1] - self.cpu[WARM_UP - 1]) / (len(self.cpu) - WARM_UP)
        return {"wall": statistics.median(self.seconds[WARM_UP:]), "cpu": spent}


def cpu_of(process: int) -> float:
    """User and system seconds of another process (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Timed(Steps):
    """Keeps each question's seconds."""

    def __init__(self, clock: Clock):
        super().__init__()
        self.clock = clock

    def notice(self, notice, measured):
        super().notice(notice, measured)
        if isinstance(notice, QuestionAnswered):
            self.clock.round(measured.seconds)


def identities(folder: Path) -> None:
    create_authority(folder / "co", ["localhost"])
    for v in range(SITES):
        enrol(folder / f"site-{v}", f"site-{v}")
        signed = sign_request(folder / "co", folder / f"site-{v}" / "site.csr")
        install(folder / f"site-{v}", signed.certificate_path)


def credentials_of(folder: Path, v: int) -> grpc.ChannelCredentials:
    identity = check_identity(folder / f"site-{v}")
    return client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)


# --- the floor ----------------------------------------------------------------------------------------------------


def noted(file: IO[bytes], received: list[bytes]) -> None:
    """What a ledger does at the least: two hashes, and a line that is on the disk."""
    digests = []
    for _ in ("what came", "what goes"):
        digest = hashlib.sha256()
        for piece in received:
            digest.update(piece)
        digests.append(digest.hexdigest())
    file.write(json.dumps({"target": digests[0], "sha256": digests[1], "beside": 300 * "x"}).encode() + b"\n")
    os.fsync(file.fileno())


class Sums:
    """What a run store does at the least: the answers' sum, with a checksum, in a transaction."""

    def __init__(self, path: Path):
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for setting in ("page_size = 32768", "journal_mode = wal", "synchronous = normal"):
            self.db.execute(f"pragma {setting}")
        self.db.execute("create table sums (question integer primary key, total blob)")
        self.question = 0

    def keep(self, answers: list[list[bytes]]) -> None:
        total = np.frombuffer(b"".join(answers[0])).copy()
        for answer in answers[1:]:
            total += np.frombuffer(b"".join(answer))
        data = total.tobytes()
        row = (self.question, hashlib.sha256(data).digest() + data)
        self.db.execute("begin immediate")
        self.db.execute("insert into sums values (?, ?)", row)
        self.db.execute("commit")
        self.question += 1


async def echo_clients(folder: Path, port: int, chunks: int, *, promises: bool) -> None:
    async def one(v: int) -> None:
        ledger = (folder / f"echo-{v}.jsonl").open("ab", buffering=0)
        async with grpc.aio.secure_channel(
            f"localhost:{port}", credentials_of(folder, v), channel_options(5)
        ) as channel:
            call = channel.stream_stream("/echo/Echo")()
            await call.write(b"hello")
            while True:
                received = []
                for _ in range(chunks):
                    data = await call.read()
                    if data is grpc.aio.EOF:
                        return
                    received.append(data)
                if promises:
                    await asyncio.to_thread(noted, ledger, received)
                for data in received:
                    await call.write(data)

    await asyncio.gather(*(one(v) for v in range(SITES)))


def floor(folder: Path, m: int, rounds: int, *, promises: bool = False) -> dict[str, float]:
    keep_freed_memory()
    data = bytes(8 * m)
    pieces = [data[i : i + LARGEST_PIECE] for i in range(0, len(data), LARGEST_PIECE)]

    clock = Clock()

    async def serve() -> None:
        files = load_server(folder / "co")
        inbox: asyncio.Queue = asyncio.Queue()
        outboxes: list[asyncio.Queue] = []

        async def handler(frames, context) -> None:
            await anext(frames)
            outbox: asyncio.Queue = asyncio.Queue()
            outboxes.append(outbox)

            async def read() -> None:
                while True:
                    inbox.put_nowait([await anext(frames) for _ in pieces])

            reader = asyncio.create_task(read())
            while (batch := await outbox.get()) is not None:
                for piece in batch:
                    await context.write(piece)
            reader.cancel()

        server = grpc.aio.server(options=channel_options(5))
        method = grpc.stream_stream_rpc_method_handler(handler)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", {"Echo": method}),))
        port = server.add_secure_port(
            "localhost:0", server_credentials(files.key_pem, files.certificate_pem, files.ca_pem)
        )
        await server.start()
        process = multiprocessing.get_context("spawn").Process(
            target=run_echo, args=(folder, port, len(pieces), promises)
        )
        process.start()
        while len(outboxes) < SITES:
            await asyncio.sleep(0.01)
        clock.client = process.pid
        sums = Sums(folder / f"echo-{m}.sqlite") if promises else None
        for _ in range(rounds):
            since = time.perf_counter()
            for outbox in outboxes:
                outbox.put_nowait(pieces)
            answers = [await inbox.get() for _ in range(SITES)]
            if sums is not None:
                await asyncio.to_thread(sums.keep, answers)
            clock.round(time.perf_counter() - since)
        for outbox in outboxes:
            outbox.put_nowait(None)
        await server.stop(1)
        process.join(10)

    asyncio.run(serve())
    return clock.figures()


def run_echo(folder: Path, port: int, chunks: int, promises: bool) -> None:
    keep_freed_memory()
    asyncio.run(echo_clients(folder, port, chunks, promises=promises))


def promised(folder: Path, m: int, rounds: int) -> dict[str, float]:
    return floor(folder, m, rounds, promises=True)


# --- coreg --------------------------------------------------------------------------------------------------------


def problem_of(m: int) -> Problem:
    rng = np.random.default_rng(0)
    sites = {
        f"site-{v}": PrivateData(rng.normal(size=(5, 1)), rng.normal(size=5), rng.normal(size=(m, 1)), "bench")
        for v in range(SITES)
    }
    return Problem(sites, (), np.empty(0))


async def agents(folder: Path, port: int, m: int, answers: str) -> None:
    async def one(v: int) -> None:
        name = f"site-{v}"
        site = Site(name, problem_of(m).sites[name], Terms(keys=simulated_keys(name)))
        ledger = Ledger(folder / f"ledger-{m}-{answers}-{v}.jsonl")
        dial = Dial(f"localhost:{port}", credentials_of(folder, v), 30)
        await take_part(site, ledger, dial, Watcher(lambda _text: None, lambda _message: None, lambda _result: None))

    await asyncio.gather(*(one(v) for v in range(SITES)))


def run_agents(folder: Path, port: int, m: int, answers: str) -> None:
    keep_freed_memory()  # as the command lines do
    pin_threads(1)
    asyncio.run(agents(folder, port, m, answers))


def coreg(folder: Path, m: int, rounds: int, answers: Answers) -> dict[str, float]:
    keep_freed_memory()
    pin_threads(1)
    files = load_server(folder / "co")
    transport = GrpcServer(
        "localhost:0",
        server_credentials(files.key_pem, files.certificate_pem, files.ca_pem),
        Authorised(folder / "co").check,
    )
    # Tolerances of 0: it goes on to max_rounds. A fresh sum is written to SQLite before every question.
    plan = plan_for(
        problem_of(1),
        Agreement(form="linear", ridge=1.0, coupling=(0.001,)),
        Iteration("consensus", tolerance=0.0, prediction_tolerance=0.0, max_rounds=rounds),
        answers=answers,
    )
    store = RunStore(folder / f"runs-{m}-{answers}.sqlite")
    store.begin(plan, utc_now())
    clock = Clock()
    processes = []

    def start(_emit) -> None:
        process = multiprocessing.get_context("spawn").Process(
            target=run_agents, args=(folder, transport.port, m, answers)
        )
        process.start()
        processes.append(process)
        clock.client = process.pid

    asyncio.run(drive(begin(Recorded(plan), Clocks()), transport, store, Timed(clock), on_start=start))
    store.close()
    for process in processes:
        process.join(20)
    return clock.figures()


def apart(measure: Callable[..., dict[str, float]], *about: Any) -> dict[str, float]:
    """Measured in a fresh process, which has whatever other processes it needs."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(measure, *about).result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--write", action="store_true", help="keep them in docs/performance.json")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="coreg-bench-") as name:
        folder = Path(name)
        identities(folder)
        for m in options.sizes:
            bare, kept = (apart(limit, folder, m, options.rounds) for limit in (floor, promised))
            for answers in ("clear", "sums"):
                ours = apart(coreg, folder, m, options.rounds, answers)
                floors = {f"floor {kind}": value for kind, value in bare.items()}
                floors |= {f"promises {kind}": value for kind, value in kept.items()}
                rows.append({"m": m, "sites": SITES, "answers": answers, **ours, **floors})
                if not options.json:
                    said = [
                        f"{kind} {1e3 * ours[kind]:.1f} ms, {ours[kind] / bare[kind]:.2f} of the echo's, "
                        f"{ours[kind] / kept[kind]:.2f} of the one with the promises"
                        for kind in bare
                    ]
                    print(f"m = {m:>9,}, {answers:5}: {'; '.join(said)}", flush=True)
    if options.json:
        print(json.dumps(rows))
    if options.write:
        known = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
        FIGURES.write_text(json.dumps(known | {"wire": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
