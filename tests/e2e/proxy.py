"""What stands between an organisation and the world: an HTTP proxy that knows CONNECT and nothing else, and a slow link."""

import contextlib
import socket
import threading
import time


class _Listener:
    """A loopback port; whoever dials it is served in a thread of its own."""

    def __init__(self, buffer=None):
        self._listener = socket.socket()
        if buffer is not None:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()


class Proxy(_Listener):
    """An HTTP proxy that knows CONNECT; ``connects`` are the addresses that it was asked for."""

    def __init__(self):
        self.connects = []
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"

    def _serve(self, client):
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := client.recv(4096)):
                    return
                head += more
            method, address, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            if method != "CONNECT":
                client.sendall(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n")
                return
            self.connects.append(address)
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                _carry(client, server)


class Link(_Listener):
    """A TCP connection to a loopback port that carries so many bytes a second each way, with a router's small buffers."""

    BUFFER = 1 << 16

    def __init__(self, port, rate):
        self._to, self._rate = port, rate
        super().__init__(self.BUFFER)

    def _serve(self, client):
        with client, socket.socket() as server, contextlib.suppress(OSError):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.BUFFER)
            server.connect(("127.0.0.1", self._to))
            for end in (client, server):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.BUFFER)
            _carry(client, server, self._rate)


def _carry(client, server, rate=None):
    back = threading.Thread(target=_pump, args=(server, client, rate), daemon=True)
    back.start()
    _pump(client, server, rate)
    back.join(5)


def _pump(source, sink, rate=None):
    free = time.monotonic()
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16 if rate is None else max(256, int(rate / 50))):
            if rate is not None:
                free = max(free, time.monotonic()) + len(data) / rate
                time.sleep(max(0.0, free - time.monotonic()))
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def slow_link(port, rate):
    """A port that leads to this one, at so many bytes a second."""
    link = Link(port, rate)
    try:
        yield link.port
    finally:
        link.close()


@contextlib.contextmanager
def proxied():
    """A proxy for as long as it is wanted."""
    proxy = Proxy()
    try:
        yield proxy
    finally:
        proxy.close()
