"""A coordinator of bad will, one that says nothing, and numbers that overflow, over real gRPC: never a hang, never a loss."""

import asyncio
import contextlib
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
import numpy as np
import pytest
from harness import Home
from machine.tiny import UNLABELLED, make_plan, make_site, private_data

from coordinator.driver import Lap, NoMemory, drive
from coordinator.machine.federation import begin
from coordinator.machine.notices import Notice
from coordinator.machine.phases import Clocks
from coordinator.machine.state import Recorded
from coreg_core.agreement.columns import Column
from coreg_core.agreement.objective import consensus_weight
from coreg_core.errors import BadData, Refused
from coreg_core.protocol.messages import Ask, Finished, FromSite, ToSite, Vector
from coreg_core.protocol.outcomes import Outcome, exit_code
from coreg_wire.transport.codec import SMALLEST_PIECE, coordinator_message_to_frames
from coreg_wire.transport.service import JOIN, SERVICE, channel_options
from coreg_wire.v1 import federation_pb2 as pb
from site_agent.ledger import Ledger, read_ledger
from site_agent.machine.site import MOST_FAULTS, Site
from site_agent.session import dial
from site_agent.session.dial import Dial, Watcher, take_part

Write: TypeAlias = Callable[[ToSite | pb.CoordinatorFrame], Awaitable[None]]
Script: TypeAlias = Callable[[AsyncIterator[bytes], Write], Awaitable[None]]


@contextlib.asynccontextmanager
async def fake_coordinator(script: Script) -> AsyncIterator[str]:
    """A server of our service that says whatever its script says; its address."""

    async def join(frames: AsyncIterator[bytes], context: Any) -> None:
        async def write(what: ToSite | pb.CoordinatorFrame) -> None:
            if isinstance(what, pb.CoordinatorFrame):
                await context.write(what.SerializeToString())
                return
            for frame in coordinator_message_to_frames(what):
                await context.write(frame)

        with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration, grpc.RpcError):
            await anext(frames)  # Hello
            await script(frames, write)
            async for _ in frames:  # the agent is the one who ends the stream
                pass

    server = grpc.aio.server(options=channel_options(5.0))
    handler: Any = grpc.stream_stream_rpc_method_handler(join)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {JOIN: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def agent(address: str, path: Path, notes: list[str] | None = None, site: Site | None = None) -> Any:
    told: list[str] = [] if notes is None else notes
    ledger = Ledger(path)
    try:
        watcher = Watcher(told.append, lambda message: None, lambda result: None)
        return await take_part(site or make_site("a"), ledger, Dial(address, None, patience=20.0), watcher)
    finally:
        ledger.close()


def refused(script: Script, path: Path) -> str:
    """Why the agent ended; it is not the agent that hangs, so it ends soon."""

    async def main() -> None:
        async with asyncio.timeout(30), fake_coordinator(script) as address:
            await agent(address, path)

    with pytest.raises(Refused) as error:
        asyncio.run(main())
    return str(error.value)


def kinds(path: Path) -> list[str]:
    return [entry["kind"] for entry in read_ledger(path)]


# --- nothing outside a plan ----------------------------------------------------------------------------------------

COLUMN = pb.Column(coupling=1.0, weight=1.0)


@pytest.mark.parametrize(
    "body",
    [
        pb.ToSite(
            ask=pb.Ask(
                run="run-1",
                part="affine",
                columns=4096 * [COLUMN],
                targets=pb.Vector(rows=20_000, columns=4096, data=bytes(SMALLEST_PIECE)),
            )
        ),
        pb.ToSite(
            finished=pb.Finished(
                run="run-1",
                outcome="CONVERGED",
                columns=[COLUMN],
                targets=pb.Vector(rows=2**40, columns=1, data=bytes(SMALLEST_PIECE)),
            )
        ),
    ],
    ids=["Ask", "Finished"],
)
def test_a_vector_before_a_plan_ends_the_session_before_memory_is_taken(tmp_path: Path, body: pb.ToSite) -> None:
    async def script(frames: AsyncIterator[bytes], write: Write) -> None:
        await write(pb.CoordinatorFrame(message=body))
        for _ in range(3):
            await write(pb.CoordinatorFrame(chunk=pb.Chunk(run="run-1", data=bytes(SMALLEST_PIECE))))

    tracemalloc.start()
    try:
        reason = refused(script, tmp_path / "ledger.jsonl")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20, "655 MB were announced"
    finally:
        tracemalloc.stop()
    assert "broke the protocol: a vector for run 'run-1', whose plan nobody has accepted here" in reason
    assert kinds(tmp_path / "ledger.jsonl") == ["Hello"], "and nothing was answered"


def test_a_question_of_another_run_ends_the_session(tmp_path: Path) -> None:
    async def script(frames: AsyncIterator[bytes], write: Write) -> None:
        await write(make_plan())
        await anext(frames)
        await write(asked(0, run="run-2"))

    assert "whose plan nobody has accepted here" in refused(script, tmp_path / "ledger.jsonl")
    assert kinds(tmp_path / "ledger.jsonl") == ["Hello", "PlanAccepted"]


def asked(number: int, **changes: Any) -> Ask:
    columns = tuple(Column(lam, consensus_weight(lam, 3)) for lam in (0.1, 1.0))
    ask = Ask("run-1", number, 0, "linear", columns, True, Vector(np.ones((UNLABELLED, 2))))
    return replace(ask, **changes)


def test_ten_forbidden_questions_in_a_row_end_the_session(tmp_path: Path) -> None:
    async def script(frames: AsyncIterator[bytes], write: Write) -> None:
        await write(make_plan())
        for number in range(1000):
            await write(asked(number, part="affine"))  # at another target than 0: it would show labels

    reason = refused(script, tmp_path / "ledger.jsonl")
    assert f"asked {MOST_FAULTS} questions that the plan does not allow" in reason
    assert kinds(tmp_path / "ledger.jsonl") == ["Hello", "PlanAccepted", *MOST_FAULTS * ["Fault"]]


def test_a_model_that_was_never_asked_ends_the_session_without_one(tmp_path: Path) -> None:
    delivered: list[Any] = []

    async def script(frames: AsyncIterator[bytes], write: Write) -> None:
        await write(make_plan())
        await write(asked(0))
        huge = Vector(np.full((UNLABELLED, 2), 1e6))
        await write(Finished("run-1", Outcome.CONVERGED, "", 2 * (Column(0.1, 1e12),), huge))

    async def main() -> None:
        ledger = Ledger(tmp_path / "ledger.jsonl")
        watcher = Watcher(lambda text: None, lambda message: None, delivered.append)
        try:
            async with asyncio.timeout(30), fake_coordinator(script) as address:
                await take_part(make_site("a"), ledger, Dial(address, None, patience=20.0), watcher)
        finally:
            ledger.close()

    with pytest.raises(Refused, match="ended run run-1 with a model to targets or weights that are not those"):
        asyncio.run(main())
    assert delivered == []
    assert kinds(tmp_path / "ledger.jsonl") == ["Hello", "PlanAccepted", "Prediction"]


@pytest.mark.parametrize(
    "frame",
    [
        pb.CoordinatorFrame(),
        pb.CoordinatorFrame(message=pb.ToSite()),
        pb.CoordinatorFrame(chunk=pb.Chunk(run="run-1", data=struct.pack("<d", 1.0))),
        pb.CoordinatorFrame(message=pb.ToSite(plan=pb.Plan(run="run-1"))),
        pb.CoordinatorFrame(message=pb.ToSite(finished=pb.Finished(run="run-1", outcome="VICTORY"))),
    ],
    ids=["no content", "no body", "chunk", "half a plan", "outcome"],
)
def test_a_frame_that_the_protocol_does_not_allow_is_said_in_words(tmp_path: Path, frame: pb.CoordinatorFrame) -> None:
    async def script(frames: AsyncIterator[bytes], write: Write) -> None:
        await write(frame)

    assert "the coordinator broke the protocol: " in refused(script, tmp_path / "ledger.jsonl")
    assert kinds(tmp_path / "ledger.jsonl") == ["Hello"]


# --- a coordinator that says nothing -------------------------------------------------------------------------------


def test_a_silent_coordinator_is_not_waited_for_without_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "SILENCE", 0.2)
    notes: list[str] = []

    async def script(frames: AsyncIterator[bytes], write: Write) -> None:
        await asyncio.sleep(20)

    async def main() -> None:
        async with fake_coordinator(script) as address:
            waiting = asyncio.create_task(agent(address, tmp_path / "ledger.jsonl", notes))
            async with asyncio.timeout(20):
                while sum(note.startswith("connected; nothing heard for") for note in notes) < 2:
                    await asyncio.sleep(0.02)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting

    asyncio.run(main())
    assert notes[0] == "connected"
    assert notes[1].endswith(": waiting for the coordinator, or for other sites, for as long as the connection lives")
    assert not any("no session" in note for note in notes), "its connection lives: it is waited for"


# --- numbers that overflow -----------------------------------------------------------------------------------------


class Watching:
    def __init__(self) -> None:
        self.notices: list[Notice] = []

    def notice(self, notice: Notice, measured: Lap) -> None:
        self.notices.append(notice)


class Overflowing(Site):
    """A site whose arithmetic overflows at its third question: it has finite targets, and no finite answer to them."""

    def handle(self, message: ToSite) -> list[FromSite]:
        if isinstance(message, Ask) and message.question == 2:
            self.runs[message.run] = replace(self.runs[message.run], view=_Infinite())  # type: ignore[arg-type]
        return super().handle(message)


class _Infinite:
    def respond(self, targets: Any, weights: Any, part: str) -> Any:
        return np.full_like(targets, np.inf)

    def solve(self, target: Any, weight: float) -> Any:
        raise AssertionError("it is not in the run any more, so it has no model of it")


def test_an_answer_that_is_not_finite_ends_the_run_at_once_though_lost_sites_are_waited_for(
    home: Home, tmp_path: Path
) -> None:
    sites = {name: make_site(name) for name in "ac"} | {"b": Overflowing("b", private_data("b"))}
    plan = make_plan(tolerance=0.0, prediction_tolerance=0.0, on_lost="wait")
    server = home.server()

    async def joined(name: str) -> Any:
        ledger = Ledger(tmp_path / f"{name}.jsonl")
        watcher = Watcher(lambda text: None, lambda message: None, lambda result: None)
        dial = Dial(f"127.0.0.1:{server.port}", home.credentials(name), patience=20.0)
        try:
            return await take_part(sites[name], ledger, dial, watcher)
        except BadData as error:
            return error
        finally:
            ledger.close()

    async def main() -> tuple[Any, dict[str, Any]]:
        tasks: dict[str, asyncio.Task[Any]] = {}

        def dial(_emit: Any) -> None:
            tasks.update({name: asyncio.create_task(joined(name)) for name in sites})

        async with asyncio.timeout(60):
            ends = await drive(begin(Recorded(plan), Clocks()), server, NoMemory(), Watching(), on_start=dial)
            return ends[plan.run], {name: await task for name, task in tasks.items()}

    since = time.monotonic()
    end, results = asyncio.run(main())
    assert time.monotonic() - since < 20, "the round's minute and the stall's ten were not waited for"
    assert end.outcome is Outcome.SITE_FAULT
    assert exit_code(end.outcome) == 6
    assert end.reason == (
        "b: its own answer is not finite: features or label column are too large for this kernel. Scale them."
    )
    assert results["a"].outcome is results["c"].outcome is Outcome.SITE_FAULT
    assert isinstance(results["b"], BadData)
    assert "not finite" in str(results["b"])
    assert kinds(tmp_path / "b.jsonl").count("Fault") == 1, "it was said once, and not asked again"


def test_a_kernel_that_overflows_refuses_the_plan_over_the_wire(tmp_path: Path) -> None:
    said: list[pb.SiteFrame] = []
    data = private_data("a")
    site = Site("a", replace(data, X=50.0 * data.X, Z=50.0 * data.Z))

    async def script(frames: AsyncIterator[bytes], write: Write) -> None:
        await write(make_plan(kernel="polynomial", degree=400))
        said.append(pb.SiteFrame.FromString(await anext(frames)))
        await write(Finished("run-1", Outcome.REFUSED, "a refused the plan"))

    async def main() -> Any:
        async with asyncio.timeout(30), fake_coordinator(script) as address:
            return await agent(address, tmp_path / "ledger.jsonl", site=site)

    result = asyncio.run(main())
    assert result.outcome is Outcome.REFUSED
    [frame] = said
    assert frame.message.WhichOneof("body") == "plan_refused"
    assert "kernel='polynomial'" in frame.message.plan_refused.reason
