"""`tokmix play MODEL`: loads the model, takes a port, serves until Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tokmix.core.checks import within
from tokmix.pages.listen import is_local, listen, names_of
from tokmix.training import model_folder
from tokmix.training.imports import import_files


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

        from tokmix.pages.headers import PATIENCE, patient_protocol
        from tokmix.pages.play.app import AT_ONCE, create
        from tokmix.pages.play.engine import PlayService
    except ImportError as error:
        raise ImportError(f"play needs the packages fastapi, httptools and uvicorn: pip install 'tokmix[play]' ({error})") from error
    within("port", port, 0, 65535)
    import_files(imports)
    engine = PlayService(model_folder.load(model), None if against is None else model_folder.load(against))
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
            timeout_graceful_shutdown=2, http=patient_protocol(PATIENCE),
        )  # fmt: skip
        with suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
            uvicorn.Server(config).run(sockets=[listener])
