"""`tokmix bench serve`: many clients on loopback, their requests computed together and one by one, with every answer checked.

    32 clients             each sends its next request when it has the answer to the one before; what waits is computed together
    one by one             one client does the same with the same server: each request is computed alone
    32 clients, --batch 1  a server that computes each of the waiting requests alone

Servers are processes of their own. The three ways take turns, so that all meet the same load of the machine.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tokmix.core.checks import at_least
from tokmix.pages.serve.server import ServeSettings, load_model
from tokmix.runtime.model import TextModel
from tokmix.runtime.sampling import Sampling

WORDS = (3, 12)  # of a text: short ones
NEW = 16  # tokens of a completion
ROUNDS = 10  # short ones, in turns: the best of each meets a quiet moment of the machine


@dataclass(frozen=True)
class Measured:
    """One way of asking, all its rounds."""

    name: str
    requests: int
    wrong: int
    lost: int
    per_second: float  # the best round: the others' load only takes away
    p50_ms: float
    p99_ms: float
    memory_before_mb: float
    memory_after_mb: float
    server_us: float  # CPU a request, of all threads of the server
    client_us: float  # and of the clients, which share the machine


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
    if model.about.task == "mlm":
        wanted += [model.run([row]).pooled[0].tolist() for row in rows]
    for answer in model.answers(rows) if model.about.task != "mlm" else ():
        wanted.append([answer["score"]] if "score" in answer else list(answer["probabilities"].values()))
    return Load("/v1/embeddings" if model.about.task == "mlm" else "/v1/classify", [json.dumps(body).encode() for body in bodies], wanted)


def run(folder: str, requests: int = 2000, clients: int = 32, threads: int = 1, out: Path | None = None) -> bool:
    """Print what was measured -> whether every answer came and was right."""
    at_least("requests", requests, 1)
    at_least("clients", clients, 1)
    model = load_model(ServeSettings(folder, threads=threads))
    load = make_load(model, min(requests, 200))
    with server(folder, 64, threads) as together, server(folder, 1, threads) as unbatched:
        ways = {
            f"{clients} clients": (together, clients),
            "one by one": (together, 1),
            f"{clients} clients, --batch 1": (unbatched, clients),
        }
        before = {name: memory_mb(process) for name, ((process, _), _) in ways.items()}
        rounds: dict[str, list[Round]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, ((process, port), count) in ways.items():
                cpu = cpu_seconds(process)
                done = one_round(port, load, max(1, requests // ROUNDS), count)
                rounds[name].append(replace(done, server_cpu=cpu_seconds(process) - cpu))
        found = [summary(name, rounds[name], before[name], memory_mb(process)) for name, ((process, _), _) in ways.items()]
    show(found)
    if out is not None:
        told = {"model": model.about.stack, "clients": clients, "servers": [asdict(one) for one in found]}
        out.write_text(json.dumps(told, indent=1) + "\n")
    return not any(one.wrong or one.lost for one in found)


def show(found: list[Measured]) -> None:
    print(f"{'':<24} requests  wrong  lost   req/s  p50 ms  p99 ms  MB before  MB after  CPU us a request: server, clients")
    for one in found:
        print(
            f"{one.name:<24} {one.requests:>8,} {one.wrong:>6} {one.lost:>5} {one.per_second:>7.0f} {one.p50_ms:>7.1f} {one.p99_ms:>7.1f}"
            f" {one.memory_before_mb:>10.0f} {one.memory_after_mb:>9.0f} {one.server_us:>25.0f} {one.client_us:>8.0f}"
        )
    print(f"batched over one by one: {found[0].per_second / found[1].per_second:.2f}")
    print(f"batched over --batch 1 under the same clients: {found[0].per_second / found[2].per_second:.2f}")
    if found[0].server_us:
        print(f"CPU of the server, one by one over batched: {found[1].server_us / found[0].server_us:.2f}")


# --- clients -----------------------------------------------------------------------------------------------------------------


@dataclass
class Round:
    seconds: float
    client_cpu: float
    times: list[float]
    wrong: int
    lost: int
    server_cpu: float = 0.0


@dataclass
class Line:
    """One connection: the request under way, and what has come of its answer."""

    socket: socket.socket
    number: int = 0
    begin: float = 0.0
    said: bytes = b""


def one_round(port: int, load: Load, requests: int, clients: int) -> Round:
    """Every client sends its next request when it has the answer to the one before. Answers are checked when the clock has stopped:
    the clients use the same cores as the server."""
    heads = f"POST {load.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
    sent = [f"{heads}{len(body)}\r\n\r\n".encode() + body for body in load.bodies]
    numbers, answers, times, lost = iter(range(requests)), {}, [], 0
    with selectors.DefaultSelector() as ready:

        def ask(line: Line) -> None:
            number = next(numbers, None)
            if number is None:
                ready.unregister(line.socket)
                line.socket.close()
                return
            line.number, line.said, line.begin = number, b"", time.perf_counter()
            line.socket.sendall(sent[number % len(sent)])

        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(clients):
            made = socket.create_connection(("127.0.0.1", port))
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(made, selectors.EVENT_READ, line := Line(made))
            ask(line)
        while ready.get_map():
            for key, _ in ready.select():
                line = key.data
                part = line.socket.recv(65536)
                line.said += part
                if whole(line.said):
                    times.append(time.perf_counter() - line.begin)
                    answers[line.number] = line.said
                    ask(line)
                elif not part:
                    lost += 1
                    ready.unregister(line.socket)
                    line.socket.close()
        seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    wrong = sum(not right(said, load.wanted[number % len(sent)]) for number, said in answers.items())
    return Round(seconds, cpu, times, wrong, lost)


def whole(said: bytes) -> bool:
    """Whether an answer is all there."""
    end = said.find(b"\r\n\r\n")
    if end < 0:
        return False
    place = said.find(b"content-length: ") + 16
    return len(said) >= end + 4 + int(said[place : said.index(b"\r", place)])


def right(said: bytes, wanted: list[float] | str) -> bool:
    head, _, body = said.partition(b"\r\n\r\n")
    if head.split()[1] != b"200":
        return False
    given = json.loads(body)
    if isinstance(wanted, str):
        return given["choices"][0]["text"] == wanted
    answer = given["data"][0]
    found = (
        answer["embedding"] if "embedding" in answer else [answer["score"]] if "score" in answer else [*answer["probabilities"].values()]
    )
    return len(found) == len(wanted) and all(abs(a - b) <= 1e-5 for a, b in zip(found, wanted, strict=True))


def summary(name: str, rounds: list[Round], before: float, after: float) -> Measured:
    times = sorted(took * 1000 for one in rounds for took in one.times)
    best = max(len(one.times) / one.seconds for one in rounds)
    return Measured(
        name, len(times), sum(one.wrong for one in rounds), sum(one.lost for one in rounds), best, statistics.median(times),
        times[min(len(times) - 1, int(0.99 * len(times)))], before, after,
        1e6 * sum(one.server_cpu for one in rounds) / max(len(times), 1), 1e6 * sum(one.client_cpu for one in rounds) / max(len(times), 1),
    )  # fmt: skip


# --- servers -----------------------------------------------------------------------------------------------------------------


@contextmanager
def server(folder: str, batch: int, threads: int) -> Iterator[tuple[int, int]]:
    """A server of its own -> its process and port."""
    words = [sys.executable, "-m", "tokmix", "serve", folder, "--port", "0", "--log", "none", "--batch", str(batch)]
    words += ["--threads", str(threads)]
    begin = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("http://"):
            raise ValueError(f"no server came up for {folder}")
        port = int(line.split(":")[2].split()[0])
        with socket.create_connection(("127.0.0.1", port)) as asked:  # the socket listens before the server takes requests
            asked.sendall(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            ready = asked.recv(64).startswith(b"HTTP/1.1 200")
        print(
            f"{line.split('  ')[1].strip()}, --batch {batch}: {'ready' if ready else 'not ready'} after {time.perf_counter() - begin:.2f} s"
        )
        yield process.pid, port
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


def cpu_seconds(process: int) -> float:
    """Of all threads so far; 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
