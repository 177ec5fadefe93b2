from __future__ import annotations

import argparse

from tokmix.cli.commands.common import add_imports, add_model

ABOUT = "open a local web page to try a trained model on your own text"


def add(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument("--against", metavar="MODEL2", help="model next to it (default: untrained attention of the same size)")
    parser.add_argument("--port", type=int, default=8765, help="0: any free port (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s, only this machine)")
    add_imports(parser)


def run(options: argparse.Namespace) -> int:
    from tokmix.pages.play import serve

    serve(options.model, against=options.against, host=options.host, port=options.port, imports=options.imports)
    return 0
