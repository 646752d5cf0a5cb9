"""One whole round of 4 sites over mutual TLS with persistence on, against a bare grpc.aio echo in
the same run.

    python benchmarks/round_trip.py [--sizes 10000 100000 1000000] [--rounds 15] [--beside DIR]
    [--write]

The floor: a grpc.aio server sends each of 4 clients m doubles, in the cheapest pieces, and receives
as many, over mutual TLS. The promises: the same, where each client also hashes received and sent
bytes and writes a line to its disk before it answers, and the server adds the answers and writes a
row to SQLite before it sends again. coreg: the operators' commands, a coordinator and four agents
as processes, on tables of one linear feature, so that computing costs almost nothing. --beside DIR
measures another checkout in the same run, size by size. The echo's clients share one process.
Medians over the rounds after the first three; CPU seconds are of all processes, a round, over the
same rounds. Ratios hold on any machine; seconds are this one's. --write saves them in
benchmarks/results/performance.json.
"""

import asyncio
import hashlib
import json
import os
import sqlite3
import statistics
import subprocess
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from harness import (
    PERFORMANCE,
    ROOT,
    apart,
    arguments,
    beside,
    cpu_of,
    folder,
    keep,
    show,
)  # before numpy

# isort: split
import grpc
import grpc.aio
import numpy as np
import polars as pl

from coordinator.authority.pki import check_request, create_authority, issue, load_server
from coreg_wire.identity.credentials import RenewableServer, client_credentials
from coreg_wire.transport.codec import PIECE_BYTES
from coreg_wire.transport.service import channel_options
from examples.demo.processes import create, run, together
from site_agent.identity.enrolment import enrol, install
from site_agent.identity.identity import check_identity

SITES = 4
WARM_UP = 3


class Clock:
    """Wall seconds a round, and CPU seconds of this process and the clients' from the end of the
    warm-up on.
    """

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


def identities(place: Path) -> None:
    create_authority(place / "co", ["localhost"])
    for v in range(SITES):
        request = enrol(place / f"site-{v}", f"site-{v}")
        install(place / f"site-{v}", issue(place / "co", *check_request(request.read_bytes())))


def credentials_of(place: Path, v: int) -> grpc.ChannelCredentials:
    identity = check_identity(place / f"site-{v}")
    return client_credentials(identity.key_pem, identity.certificate_pem, identity.ca_pem)


# --- the floor ------------------------------------------------------------------------------------


def noted(file: IO[bytes], received: list[bytes]) -> None:
    """The minimum of a ledger: two hashes, and a line on the disk."""
    digests = []
    for _ in ("what came", "what goes"):
        digest = hashlib.sha256()
        for piece in received:
            digest.update(piece)
        digests.append(digest.hexdigest())
    file.write(
        json.dumps({"target": digests[0], "sha256": digests[1], "beside": 300 * "x"}).encode()
        + b"\n"
    )
    os.fsync(file.fileno())


class Steps:
    """The minimum of a coordinator: the answers' sum, and a row of a run store in a transaction."""

    def __init__(self, path: Path):
        self.db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        for setting in ("page_size = 32768", "journal_mode = wal", "synchronous = normal"):
            self.db.execute(f"pragma {setting}")
        self.db.execute("create table rounds (number integer primary key, report text)")
        self.number = 0

    def add(self, answers: list[list[bytes]]) -> bytes:
        total = np.frombuffer(b"".join(answers[0])).copy()
        for answer in answers[1:]:
            total += np.frombuffer(b"".join(answer))
        self.db.execute("begin immediate")
        self.db.execute("insert into rounds values (?, ?)", (self.number, 100 * "x"))
        self.db.execute("commit")
        self.number += 1
        return total.tobytes()


async def echo_clients(place: Path, port: int, chunks: int, *, promises: bool) -> None:
    async def one(v: int) -> None:
        ledger = (place / f"echo-{v}.jsonl").open("ab", buffering=0)
        async with grpc.aio.secure_channel(
            f"localhost:{port}", credentials_of(place, v), channel_options(5)
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


def floor(place: Path, m: int, rounds: int, *, promises: bool = False) -> dict[str, float]:
    data = bytes(8 * m)
    pieces = [data[i : i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)]

    clock = Clock()

    async def serve() -> None:
        files = load_server(place / "co")
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
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("echo", {"Echo": method}),)
        )
        port = server.add_secure_port(
            "localhost:0",
            RenewableServer(files.key_pem, files.certificate_pem, files.ca_pem).credentials,
        )
        await server.start()
        process = beside(run_echo, place, port, len(pieces), promises)
        while len(outboxes) < SITES:
            await asyncio.sleep(0.01)
        clock.client = process.pid
        steps = Steps(place / f"echo-{m}.sqlite") if promises else None
        for _ in range(rounds):
            since = time.perf_counter()
            for outbox in outboxes:
                outbox.put_nowait(pieces)
            answers = [await inbox.get() for _ in range(SITES)]
            if steps is not None:
                await asyncio.to_thread(steps.add, answers)
            clock.round(time.perf_counter() - since)
        for outbox in outboxes:
            outbox.put_nowait(None)
        await server.stop(1)
        process.join(10)

    asyncio.run(serve())
    return clock.figures()


def run_echo(place: Path, port: int, chunks: int, promises: bool) -> None:
    asyncio.run(echo_clients(place, port, chunks, promises=promises))


def promised(place: Path, m: int, rounds: int) -> dict[str, float]:
    return floor(place, m, rounds, promises=True)


# --- coreg ----------------------------------------------------------------------------------------

STUDY = """
[study]
name = "{name}"
[model]
form = "linear"
bandwidth = "paper"
ridge = "paper"
coupling = 0.001
[solver]
name = "conjugate-gradients"
tolerance = 0.0
prediction_tolerance = 0.0
max_rounds = {rounds}
[privacy]
aggregation = "{aggregation}"
[alignment]
align = false
"""


def tables(place: Path, m: int) -> None:
    rng = np.random.default_rng(0)
    for v in range(SITES):
        for name, rows in ((f"site-{v}.csv", 5), (f"site-{v}-shared.csv", m)):
            columns = {"id": np.arange(rows), "x": rng.normal(size=rows)}
            if rows == 5:
                columns["y"] = rng.normal(size=5)
            pl.DataFrame(columns).write_csv(place / name)


class Sampler:
    """CPU seconds of processes, read ten times a second."""

    def __init__(self) -> None:
        self.processes: list[int] = []
        self.seen: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        known: dict[int, float] = {}
        while not self._over.wait(0.1):
            for process in list(self.processes):
                try:
                    known[process] = cpu_of(process)
                except OSError:
                    continue
            self.seen.append((time.time(), sum(known.values())))

    def between(self, first: float, last: float) -> float:
        self._over.set()
        self._thread.join()
        at, spent = zip(*self.seen, strict=True)
        return float(np.interp(last, at, spent) - np.interp(first, at, spent))


def coreg(place: Path, m: int, rounds: int, aggregation: str, checkout: str) -> dict[str, float]:
    """Rounds of real processes, with the packages of that checkout."""
    os.environ["PYTHONPATH"] = os.pathsep.join([checkout, f"{checkout}/proto"])
    name = f"{m}-{aggregation}-{abs(hash(checkout)) % 1000}"
    (place / f"{name}.toml").write_text(
        STUDY.format(name=name, aggregation=aggregation, rounds=rounds), encoding="utf-8"
    )
    (place / f"{name}-policy.toml").write_text(f'aggregation = "{aggregation}"\n', encoding="utf-8")
    agents = {
        f"site-{v}": [
            "--data", f"../site-{v}.csv", "--unlabelled", f"../site-{v}-shared.csv", "--no-scale",
            "--policy", f"../{name}-policy.toml", "--ledger", f"{name}.jsonl",
        ]
        for v in range(SITES)
    }  # fmt: skip
    sampler = Sampler()
    centre = Sampler()

    def started(who: str, process: "subprocess.Popen[bytes]") -> None:
        sampler.processes.append(process.pid)
        if who == "coordinator":
            centre.processes.append(process.pid)

    (place / f"{name}-policy.toml").chmod(0o600)
    (place / "fed" / "runs.sqlite").unlink(
        missing_ok=True
    )  # the other checkout can have another schema
    for v in range(SITES):  # a secret without its ledger is refused, and each run has a ledger
        (place / f"site-{v}" / "identity" / "salt").unlink(missing_ok=True)
    together(place, name, ["run", "fed", "--study", f"{name}.toml"], agents, started=started)
    summary = json.loads(run("coordinator.cli.app", "runs", "fed", "--json", cwd=place))
    shown = json.loads(
        run(
            "coordinator.cli.app",
            "show",
            summary["run"],
            "--federation",
            "fed",
            "--json",
            cwd=place,
        )
    )
    found: list[dict[str, Any]] = shown["rounds"]
    at = [datetime.fromisoformat(each["at"]).timestamp() for each in found]
    seconds = [each["seconds"] for each in found[WARM_UP:]]
    cpu = sampler.between(at[WARM_UP - 1], at[-1]) / len(seconds)
    alone = centre.between(at[WARM_UP - 1], at[-1]) / len(seconds)
    return {"wall": statistics.median(seconds), "cpu": cpu, "coordinator cpu": alone}


def main() -> None:
    options = arguments(
        __doc__, write=False, sizes=[10_000, 100_000, 1_000_000], rounds=15, beside=[""]
    )
    rows = []
    with folder() as place:
        identities(place / "echo")
        create(place, [f"site-{v}" for v in range(SITES)])
        for m in options.sizes:
            tables(place, m)
            bare, kept = (
                apart(limit, place / "echo", m, options.rounds) for limit in (floor, promised)
            )
            for aggregation in ("plaintext", "secure"):
                for checkout in filter(None, [*options.beside, str(ROOT)]):
                    ours = apart(coreg, place, m, options.rounds, aggregation, checkout)
                    limits = {f"floor {kind}": value for kind, value in bare.items()}
                    limits |= {f"promises {kind}": value for kind, value in kept.items()}
                    row = {"m": m, "sites": SITES, "answers": aggregation, **ours, **limits}
                    if checkout == str(ROOT):
                        rows.append(show(row))
                    else:
                        show({"checkout": checkout, **row})
    if options.write:
        keep(PERFORMANCE, wire=rows)


if __name__ == "__main__":
    main()
