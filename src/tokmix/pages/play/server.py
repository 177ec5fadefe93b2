"""`tokmix play MODEL`: loads the model, takes a port, serves until Ctrl-C."""

from __future__ import annotations

import errno
import ipaddress
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tokmix.core.checks import within
from tokmix.training import model_folder
from tokmix.training.imports import import_files

LOCAL = ("127.0.0.1", "localhost", "[::1]")


def serve(
    model: str | Path,
    *,
    against: str | Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    imports: Sequence[str | Path] = (),
) -> None:
    """Blocks until Ctrl-C."""
    try:
        import uvicorn

        from tokmix.pages.play.app import AT_ONCE, create
        from tokmix.pages.play.engine import Engine
    except ImportError as error:
        raise ImportError(f"play needs the packages fastapi and uvicorn: pip install 'tokmix[play]' ({error})") from error
    within("port", port, 0, 65535)
    import_files(imports)
    engine = Engine(model_folder.load(model), None if against is None else model_folder.load(against))
    local = is_local(host)
    if not local:
        print(f"--host {host}: everyone who can reach this address can use the model; there is no password", file=sys.stderr)
    with listen(host, port) as listener:
        where = listener.getsockname()
        shown = f"[{where[0]}]" if ":" in where[0] else where[0]
        app = create(engine, names_of(shown) if local else None)
        print(f"http://{shown}:{where[1]}  (Ctrl-C ends it)", flush=True)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, limit_concurrency=4 * AT_ONCE, timeout_keep_alive=5, server_header=False, ws="none",
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            uvicorn.Server(config).run(sockets=[listener])


def names_of(shown: str) -> list[str]:
    """What a request may call a server on this machine: also by the address that was printed, 127.0.0.2 say."""
    return list(dict.fromkeys([*LOCAL, shown]))


def is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; a port that is taken is said to be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ValueError(f"--host {host!r} is no address of this machine ({error})") from None
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRNOTAVAIL:  # no port would help
            raise ValueError(f"--host {host!r} is no address of this machine ({error.strerror})") from None
        raise ValueError(f"cannot listen on {host} port {port}: {error.strerror}; --port takes another, 0 any that is free") from None
    return listener
