"""`tokmix bench serve`: many clients on loopback, batched and one by one, with every answer checked.

The server is a process of its own. Batched and one-by-one servers take turns, so that both meet the same load of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tokmix.core.checks import at_least
from tokmix.pages.serve.server import ServeSettings, load_model
from tokmix.runtime.model import TextModel
from tokmix.runtime.sampling import Sampling

WORDS = (3, 12)  # of a text: short ones
NEW = 16  # tokens of a completion
ROUNDS = 3


@dataclass(frozen=True)
class Measured:
    """One server, all its rounds."""

    batch: int
    requests: int
    wrong: int
    lost: int
    per_second: float  # the best round: the others' load only takes away
    p50_ms: float
    p99_ms: float
    memory_before_mb: float
    memory_after_mb: float


@dataclass(frozen=True)
class Load:
    path: str
    bodies: list[bytes]
    wanted: list[list[float] | str]


def make_load(model: TextModel, count: int) -> Load:
    """Requests of random words of the model's own vocabulary, and the answer to each when it is computed alone."""
    draw = random.Random(0)
    words = [word for word in model.tokenizer.words() if word.isascii() and word.isalpha()] or ["a"]
    words.sort()
    texts = [" ".join(draw.choices(words, k=draw.randint(*WORDS))) for _ in range(count)]
    wanted: list[list[float] | str] = []
    if model.about.task == "lm":
        bodies = [{"prompt": text, "max_tokens": NEW, "temperature": 0} for text in texts]
        wanted += ["".join(model.generate(text, NEW, Sampling())) for text in texts]
        return Load("/v1/completions", [json.dumps(body).encode() for body in bodies], wanted)
    rows = [(text,) * (2 if model.about.pair else 1) for text in texts]
    bodies = [{"input": [list(row)] if model.about.pair else row[0]} for row in rows]
    wanted += [model.run([row]).pooled[0].tolist() for row in rows]
    return Load("/v1/embeddings", [json.dumps(body).encode() for body in bodies], wanted)


def run(folder: str, requests: int = 2000, clients: int = 32, threads: int = 1, out: Path | None = None) -> bool:
    """Print what was measured -> whether every answer came and was right."""
    at_least("requests", requests, 1)
    at_least("clients", clients, 1)
    model = load_model(ServeSettings(folder, threads=threads))
    load = make_load(model, min(requests, 200))
    found = []
    with server(folder, 64, threads) as together, server(folder, 1, threads) as alone:
        servers = {64: together, 1: alone}
        before = {batch: memory_mb(process) for batch, (process, _) in servers.items()}
        rounds: dict[int, list[Round]] = {batch: [] for batch in servers}
        for _ in range(ROUNDS):
            for batch, (_, port) in servers.items():
                rounds[batch].append(asyncio.run(one_round(port, load, max(1, requests // ROUNDS), clients)))
        for batch, (process, _) in servers.items():
            found.append(summary(batch, rounds[batch], before[batch], memory_mb(process)))
    show(found)
    if out is not None:
        out.write_text(
            json.dumps({"model": model.about.stack, "clients": clients, "servers": [asdict(one) for one in found]}, indent=1) + "\n"
        )
    return not any(one.wrong or one.lost for one in found)


def show(found: list[Measured]) -> None:
    print(
        f"{'batch':>6} {'requests':>9} {'wrong':>6} {'lost':>5} {'req/s':>8} {'p50 ms':>8} {'p99 ms':>8} {'MB before':>10} {'MB after':>9}"
    )
    for one in found:
        print(
            f"{one.batch:>6} {one.requests:>9,} {one.wrong:>6} {one.lost:>5} {one.per_second:>8.0f} {one.p50_ms:>8.1f} {one.p99_ms:>8.1f}"
            f" {one.memory_before_mb:>10.0f} {one.memory_after_mb:>9.0f}"
        )
    print(f"batched over one by one: {found[0].per_second / found[1].per_second:.2f}")


# --- clients -----------------------------------------------------------------------------------------------------------------


@dataclass
class Round:
    seconds: float
    times: list[float]
    wrong: int
    lost: int


async def one_round(port: int, load: Load, requests: int, clients: int) -> Round:
    numbers = iter(range(requests))
    done = Round(0.0, [], 0, 0)
    begin = time.perf_counter()
    await asyncio.gather(*(client(port, load, numbers, done) for _ in range(clients)))
    done.seconds = time.perf_counter() - begin
    return done


async def client(port: int, load: Load, numbers: Iterator[int], done: Round) -> None:
    """One connection, one request after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for number in numbers:
            place = number % len(load.bodies)
            body = load.bodies[place]
            head = f"POST {load.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            begin = time.perf_counter()
            try:
                writer.write(head.encode() + body)
                status, said = await answer(reader)
            except (OSError, asyncio.IncompleteReadError):
                done.lost += 1
                return
            done.times.append(time.perf_counter() - begin)
            done.wrong += status != 200 or not right(json.loads(said), load.wanted[place])
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    size = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length"))
    return int(lines[0].split()[1]), await reader.readexactly(size)


def right(said: dict, wanted: list[float] | str) -> bool:
    if isinstance(wanted, str):
        return said["choices"][0]["text"] == wanted
    found = said["data"][0]["embedding"]
    return len(found) == len(wanted) and all(abs(a - b) <= 1e-5 for a, b in zip(found, wanted, strict=True))


def summary(batch: int, rounds: list[Round], before: float, after: float) -> Measured:
    times = sorted(took * 1000 for one in rounds for took in one.times)
    best = max(len(one.times) / one.seconds for one in rounds)
    return Measured(
        batch, len(times), sum(one.wrong for one in rounds), sum(one.lost for one in rounds), best, statistics.median(times),
        times[min(len(times) - 1, int(0.99 * len(times)))], before, after,
    )  # fmt: skip


# --- servers -----------------------------------------------------------------------------------------------------------------


@contextmanager
def server(folder: str, batch: int, threads: int) -> Iterator[tuple[int, int]]:
    """A server of its own -> its process and port."""
    words = [sys.executable, "-m", "tokmix", "serve", folder, "--port", "0", "--log", "none", "--batch", str(batch)]
    words += ["--threads", str(threads)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("http://"):
            raise ValueError(f"no server came up for {folder}")
        yield process.pid, int(line.split(":")[2].split()[0])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def memory_mb(process: int) -> float:
    """Resident memory; 0 where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
