"""How much longer 8 clients of `tokmix serve` take next to a hostile one: 600 requests with it and without, in turns.

    python -m bench.hostile EXPORTED [--rounds 9]

Every answer is checked. The hostile client is a process on the same machine, so its own work counts too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.synchronize import Event

from tokmix.pages.serve import bench
from tokmix.pages.serve.server import ServeSettings, load_model

REQUESTS, CLIENTS = 600, 8
HEAD = b"POST /v1/classify HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
Hostile = Callable[[int, Event], None]  # (port, set when it is to end)


def with_body(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def sending(make: Callable[[], bytes], pause: float, read: bool = True) -> Hostile:
    """A client that sends such a request again and again."""

    def client(port: int, stop: Event) -> None:
        while not stop.wait(pause):
            # OSError: the server has closed the connection
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=20) as one:
                one.sendall(make())
                if read:
                    one.recv(200)

    return client


def hanging(port: int, stop: Event) -> None:
    open_ones = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for one in open_ones:
        one.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
    stop.wait()


def slow_headers(port: int, stop: Event) -> None:
    open_ones = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    letters = b"POST / HTTP/1.1\r\nX: "
    while not stop.wait(0.5):
        for one in open_ones:
            with suppress(OSError):  # the server has closed the connection
                one.sendall(letters)
        letters = b"a"


KINDS: dict[str, Hostile | None] = {
    "none, again": None,
    "20 that begin a body and hang": hanging,
    "drops its connection": sending(lambda: with_body(b'{"input": "a fine film"}'), 0.02, read=False),
    "random bytes": sending(lambda: random.randbytes(2000), 0.02),
    "10 MB": sending(lambda: with_body(b" " * 10_000_000), 0.05),
    "deep JSON": sending(lambda: with_body(b"[" * 100_000), 0.05),
    "90,000 fields": sending(lambda: with_body(b"{" + b",".join(b'"k%d":1' % i for i in range(90_000)) + b"}"), 0.5),
    "200 with slow headers": slow_headers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    load = bench.make_load(load_model(ServeSettings(options.model, threads=1)), 200)
    fork = multiprocessing.get_context("fork")
    ratios: dict[str, list[float]] = {name: [] for name in KINDS}
    with bench.server(options.model, 64, 1) as (_, port):
        for _ in range(options.rounds):
            for name, client in KINDS.items():
                alone, stop = bench.one_round(port, load, REQUESTS, CLIENTS), fork.Event()
                other = None if client is None else fork.Process(target=client, args=(port, stop))
                if other is not None:
                    other.start()
                    time.sleep(0.05)
                beside = bench.one_round(port, load, REQUESTS, CLIENTS)
                stop.set()
                if other is not None:
                    other.join()
                assert not (alone.wrong or alone.lost or beside.wrong or beside.lost), name
                ratios[name].append(beside.seconds / alone.seconds)
    for name, found in ratios.items():
        print(f"{name:30} times as long: {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
