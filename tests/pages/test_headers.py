"""Headers that do not come in time end their connection; others are served meanwhile."""

from __future__ import annotations

import socket
import threading
import time

import pytest

pytest.importorskip("uvicorn")
import uvicorn

from tokmix.pages.headers import patient_protocol


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", http=patient_protocol(0.5), timeout_keep_alive=30))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    listener.close()


def answered(connection: socket.socket) -> None:
    got = b""
    while not got.endswith(b"ok"):
        got += connection.recv(1000)


GOOD = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("before", [b"", GOOD], ids=["first request", "second request"])
def test_headers_have_a_time_limit(port, before):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as slow:
        if before:
            slow.sendall(before)
            answered(slow)
        slow.sendall(b"GET / HTTP/1.1\r\n")
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", port), timeout=10) as quick:
            quick.sendall(GOOD)
            answered(quick)
        assert slow.recv(1000) == b"" and 0.2 < time.monotonic() - began < 9
