"""An address that cannot be listened on is our sentence, before gRPC writes its own."""

import asyncio
import os
import socket

import pytest

from coordinator.transports.grpc_mtls import GrpcServer
from coreg_core.errors import UsageError
from coreg_wire.transport.addresses import check_free


@pytest.fixture
def taken():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_a_port_in_use_is_a_sentence(taken):
    port = taken.rpartition(":")[2]
    with pytest.raises(UsageError, match=rf"another program listens on port {port}.*--listen.*ss -ltnp"):
        check_free(taken)


def test_the_transport_says_it_and_grpc_says_nothing(taken, capfd):
    with pytest.raises(UsageError, match="another program listens"):
        asyncio.run(GrpcServer(taken, None, lambda _name, _pem: None).start(lambda _event: None))
    assert capfd.readouterr() == ("", "")


def test_other_reasons():
    with pytest.raises(UsageError, match="has no such address"):
        check_free("192.0.2.1:7600")  # of the block for documentation, which is nobody's
    with pytest.raises(UsageError, match="at most 65535"):
        check_free("127.0.0.1:70000")
    with pytest.raises(UsageError, match=r"cannot listen on no\.such\.host\.invalid:7600"):
        check_free("no.such.host.invalid:7600")
    if os.geteuid() != 0:
        with pytest.raises(UsageError, match="below 1024"):
            check_free("127.0.0.1:80")


def test_what_is_free_stays_free(taken):
    port = taken.rpartition(":")[2]
    for listen in ("127.0.0.1:0", "nothing", f"127.0.0.2:{port}"):
        check_free(listen)
        check_free(listen)
