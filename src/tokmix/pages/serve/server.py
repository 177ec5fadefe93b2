"""`tokmix serve MODEL`: loads the model, takes a port, serves until SIGTERM or Ctrl-C, which finish what is in flight."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from tokmix.core.checks import at_least, one_of, within
from tokmix.pages.headers import PATIENCE, patient_protocol
from tokmix.pages.listen import is_local, listen, names_of
from tokmix.runtime.folder import checksum, is_exported, read
from tokmix.runtime.model import TextModel

if TYPE_CHECKING:
    import uvicorn

HEADER_SECONDS = PATIENCE
CONNECTIONS = 1024
GRACE = 30  # seconds for what is in flight at the end
SWITCH = 5e-4  # seconds until a thread hands over: what computes and what reads HTTP share the interpreter
EXPORTED = "exported"  # of a run, where `tokmix export RUN --out RUN/exported` put it
LOGS = ("requests", "texts", "none")


@dataclass(frozen=True)
class ServeSettings:
    """model    a folder of `tokmix export` (computed by onnxruntime, without torch) or of `tokmix train`: by torch, or by its exported/
    token    a file that holds the token requests have to give
    log      requests: a line of JSON each, without texts; texts: with them; none
    batch    rows computed at once; queue: rows that may wait; seconds: for one request
    threads  of one computation; HTTP needs a core, too, and threads that outnumber the cores wait for each other
    """

    model: str
    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    token: str | None = None
    log: str = "requests"
    batch: int = 64
    queue: int = 1024
    seconds: float = 30.0
    threads: int = 1
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        within("port", self.port, 0, 65535)
        for name in ("workers", "batch", "queue", "threads"):
            at_least(name, getattr(self, name), 1)
        if not 0 < self.seconds <= 3600:
            raise ValueError(f"seconds={self.seconds!r} should be above 0 and at most 3600")
        one_of("log", self.log, LOGS)


def read_token(path: str | None) -> str | None:
    if path is None:
        return None
    token = Path(path).read_text(encoding="utf-8").strip()
    if len(token) < 16 or not token.isascii() or any(letter.isspace() for letter in token):
        raise ValueError(f"--token {path}: the file should hold one token of at least 16 ASCII letters without spaces")
    return token


def load_model(settings: ServeSettings) -> TextModel:
    """An exported folder; of a run the exported folder in it, where that is of this very model, which starts without torch."""
    found = next((folder for folder in (Path(settings.model), Path(settings.model) / EXPORTED) if is_exported(folder)), None)
    if found is not None and (found == Path(settings.model) or _is_of(found, settings.model)):
        from tokmix.runtime import load

        return load(found, settings.threads)
    import torch

    from tokmix.export.torch_model import load as load_torch

    torch.set_num_threads(settings.threads)
    return load_torch(settings.model, settings.imports)


def _is_of(exported: Path, model: str) -> bool:
    """Whether a folder was exported from the model as it is now, and answers as it does."""
    records = [path for path in (Path(model) / "training.json", Path(model) / "model" / "training.json") if path.is_file()]
    if records and read(exported).source == checksum(records[0]):
        return True
    print(f"{exported} is not of this model as it is: the model is computed by torch; export it again", file=sys.stderr)
    return False


def name_of(folder: str) -> str:
    path = Path(folder).resolve()
    return path.parent.name if path.name == "model" else path.name


def serve(settings: ServeSettings) -> None:
    """Blocks until SIGTERM or Ctrl-C."""
    try:
        import fastapi  # noqa: F401
        import httptools  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"serve needs the packages fastapi, httptools, uvicorn and prometheus-client: pip install 'tokmix[serve]' ({error})"
        ) from error
    token = read_token(settings.token)
    model = load_model(settings)  # also with several workers: what is wrong with the folder is told once, here
    if not is_local(settings.host) and token is None:
        print(
            f"--host {settings.host}: everyone who can reach this address can use the model; --token FILE asks for a token", file=sys.stderr
        )
    with listen(settings.host, settings.port) as listener:
        where = listener.getsockname()
        shown = f"[{where[0]}]" if ":" in where[0] else where[0]
        print(f"http://{shown}:{where[1]}  {name_of(settings.model)}, {model.about.task}, by {model.engine}  (Ctrl-C ends it)", flush=True)
        if settings.workers == 1:
            run_worker(settings, token, listener, model)
        else:
            del model
            supervise(settings, token, listener)


def run_worker(settings: ServeSettings, token: str | None, listener: socket.socket, model: TextModel | None = None) -> None:
    """One server on a listening socket, until a signal ends it, or the end of the process that started it."""
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_follow, args=(parent,), daemon=True).start()
    with suppress(KeyboardInterrupt, asyncio.CancelledError):  # Ctrl-C is how it ends
        make_server(settings, token, listener, model).run(sockets=[listener])


def _follow(parent: multiprocessing.process.BaseProcess) -> None:
    """A worker whose supervisor was killed would hold the port against the next one."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def make_server(settings: ServeSettings, token: str | None, listener: socket.socket, model: TextModel | None = None) -> uvicorn.Server:
    import uvicorn

    from tokmix.pages.serve.app import create
    from tokmix.pages.serve.service import Bounds

    model = load_model(settings) if model is None else model
    sys.setswitchinterval(SWITCH)
    where = listener.getsockname()[0]
    hosts = names_of(f"[{where}]" if ":" in where else where) if is_local(settings.host) else None
    bounds = Bounds(settings.batch, settings.queue, settings.seconds)
    app = create(model, name_of(settings.model), bounds, hosts, token, settings.log)
    config = uvicorn.Config(
        app, http=patient_protocol(HEADER_SECONDS), log_level="error", access_log=False, limit_concurrency=CONNECTIONS, ws="none",
        timeout_keep_alive=5, server_header=False, date_header=False, timeout_graceful_shutdown=GRACE, lifespan="on",
    )  # fmt: skip
    return uvicorn.Server(config)


def supervise(settings: ServeSettings, token: str | None, listener: socket.socket) -> None:
    """Several worker processes on one socket; one that dies is started again. SIGTERM and Ctrl-C reach all of them."""
    from prometheus_client.multiprocess import mark_process_dead

    from tokmix.pages.serve.metrics import SHARED

    context = multiprocessing.get_context("spawn")
    shared = tempfile.mkdtemp(prefix="tokmix-serve-")
    os.environ[SHARED] = shared  # workers read it as they import prometheus_client
    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}

    def start() -> multiprocessing.context.SpawnProcess:
        process = context.Process(target=run_worker, args=(settings, token, listener), daemon=False)
        process.start()
        return process

    try:
        workers = [start() for _ in range(settings.workers)]
        while not ending:
            time.sleep(0.1)
            for i, worker in enumerate(workers):
                if not ending and not worker.is_alive():
                    print(f"worker {worker.pid} ended with {worker.exitcode}; another is started", file=sys.stderr, flush=True)
                    mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]  # takes its open requests out of the metrics
                    workers[i] = start()
        stop(workers)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.environ.pop(SHARED, None)
        shutil.rmtree(shared, ignore_errors=True)


def stop(workers: Sequence[multiprocessing.context.SpawnProcess]) -> None:
    for worker in workers:
        worker.terminate()  # SIGTERM: it finishes what is in flight
    deadline = time.monotonic() + GRACE + 5
    for worker in workers:
        worker.join(max(0.0, deadline - time.monotonic()))
        if worker.is_alive():
            worker.kill()
