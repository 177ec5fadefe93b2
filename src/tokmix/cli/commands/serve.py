from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports

ABOUT = "serve a trained or exported model over HTTP: classification, embeddings or completions"
FIRST = ("--port", "--host", "--workers", "--token", "--threads")  # of --help


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder that `train` wrote, or one that `export` wrote, which needs no torch")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, only this machine)")
    parser.add_argument("--workers", type=int, default=1, help="number of processes (default: %(default)s)")
    parser.add_argument("--token", metavar="FILE", default=None, help="file with the secret token that each request must carry")
    parser.add_argument(
        "--log", choices=["requests", "texts", "none"], default="requests", help="one line per request (default: %(default)s)"
    )
    parser.add_argument("--batch", type=int, default=64, help="most rows computed together (default: %(default)s)")
    parser.add_argument("--queue", type=int, default=1024, help="most rows that wait; further requests are refused (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit of a request (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch or onnxruntime in each process (default: %(default)s)")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.pages.serve import ServeSettings, serve

    names = ("model", "port", "host", "workers", "token", "log", "batch", "queue", "seconds", "threads")
    serve(ServeSettings(**{name: getattr(options, name) for name in names}, imports=tuple(options.imports)))
    return 0
