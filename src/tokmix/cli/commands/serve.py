from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports

ABOUT = "a trained or exported model behind HTTP: classify, embeddings or completions"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder that `train` wrote, or one of `export`, which needs no torch")
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, this machine alone)")
    parser.add_argument("--workers", type=int, default=1, help="processes (default: %(default)s)")
    parser.add_argument("--token", metavar="FILE", default=None, help="a file with the token that requests have to give")
    parser.add_argument("--log", choices=["requests", "texts", "none"], default="requests", help="a line a request (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=64, help="rows computed at once (default: %(default)s)")
    parser.add_argument("--queue", type=int, default=1024, help="rows that may wait (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="for one request (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of one computation (default: %(default)s)")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.pages.serve import ServeSettings, serve

    names = ("model", "port", "host", "workers", "token", "log", "batch", "queue", "seconds", "threads")
    serve(ServeSettings(**{name: getattr(options, name) for name in names}, imports=tuple(options.imports)))
    return 0
