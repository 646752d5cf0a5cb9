"""One run from configuration to exit code: which run, which certificates, and the driver with its signals.

Knows every room of the coordinator and puts them together; `cli` parses and calls it.
"""

import asyncio
import dataclasses
import signal
from collections.abc import Callable
from pathlib import Path

import grpc

from coordinator.authorised import Authorised
from coordinator.config import Configuration
from coordinator.driver import drive, utc_now
from coordinator.events import Ended, Event, Finish, Interrupted, Resumption
from coordinator.machine import Coordinator
from coordinator.pki import expiry_warnings, load_server
from coordinator.report import AnyReporter, LiveReporter, Remembering
from coordinator.store import Measured, RunStore
from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.errors import UsageError
from coreg_core.messages import Plan
from coreg_core.rounds.schedule import Stop
from coreg_core.threads import pin_threads
from coreg_wire.console import EXIT_CODE_OF_STOP
from coreg_wire.credentials import server_credentials


def choose_run(store: RunStore, plan: Plan, *, new: bool) -> tuple[Plan, Resumption | None]:
    """The unfinished run of the same plan, or a new one, written down.

    Raises:
        UsageError: a run of another plan is unfinished, and ``new`` was not said.
    """
    unfinished = [summary for summary in store.runs() if summary.ended is None]
    if not new and (found := store.unfinished(plan.digest)) is not None:
        run, resumption = found
        return dataclasses.replace(plan, run=run), resumption
    if unfinished and not new:
        raise UsageError(
            f"run {unfinished[0].run} in {store.path} is unfinished and has another plan. Run it with its own "
            "configuration, or give --new to abandon it."
        )
    for summary in unfinished:
        ended = Ended(Stop.INTERRUPTED, "abandoned: a new run was asked for (--new)")
        store.write(summary.run, ended, Measured(0.0, 0, 0), utc_now())
    store.begin(plan, utc_now())
    return plan, None


def serve(
    configuration: Configuration,
    reporter: AnyReporter,
    *,
    insecure: bool,
    new: bool,
    port_file: Path | None = None,
) -> int:
    """Serve one run to its end; the exit code."""
    service = configuration.service
    credentials: grpc.ServerCredentials | None = None
    authorise: Callable[[str, bytes], None] = _anybody
    if not insecure:
        files = load_server(service.identity)
        credentials = server_credentials(files.key_pem, files.certificate_pem, files.ca_pem)
        authorise = Authorised(service.identity).check
        for warning in expiry_warnings(service.identity):
            reporter.note(f"warning: {warning}")
    service.store.parent.mkdir(parents=True, exist_ok=True)
    store = RunStore(service.store)
    try:
        plan, resumption = choose_run(store, configuration.plan(), new=new)
        pin_threads(plan.threads)
        transport = GrpcServer(
            service.listen,
            credentials,
            authorise,
            n_columns=len(plan.coupling),
            keepalive=configuration.timeouts.keepalive,
        )
        machine = Coordinator(plan, configuration.machine_timeouts(), resumption)
        watcher = Remembering(reporter)

        def on_listening(emit: Callable[[Event], None]) -> None:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, emit, Interrupted())
            host = service.listen.rpartition(":")[0]
            reporter.listening(host, transport.port)
            if port_file is not None:
                port_file.write_text(f"{transport.port}\n", encoding="ascii")

        end: Finish = asyncio.run(drive(machine, transport, store, watcher, on_start=on_listening))
        reporter.finished(plan, end, watcher.rounds, watcher.last)
        return EXIT_CODE_OF_STOP[end.stop.name]
    finally:
        if isinstance(reporter, LiveReporter):
            reporter.close()
        store.close()


def _anybody(_name: str, _certificate_pem: bytes) -> None:
    """--insecure: on loopback, every name is believed."""
