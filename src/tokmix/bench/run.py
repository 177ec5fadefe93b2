"""One benchmark from start to end: run it, print its table, write its JSON file and its picture."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from tokmix.bench import table
from tokmix.bench.session import Session
from tokmix.bench.settings import Asked

TABLES = {"ops": table.ops, "layers": table.ops, "decode": table.decode, "train": table.train, "train-loop": table.train_loop}


def run(asked: Asked, say: Callable[[str], None] = print) -> Session:
    if asked.out is not None:
        if not asked.out.parent.is_dir():
            raise ValueError(f"{asked.out.parent} is no folder: {asked.out} cannot be written")
        if asked.out.suffix != ".json":
            raise ValueError(f"--out {asked.out} should name a .json file; a picture goes beside it")
    session = Session(asked, say)
    importlib.import_module(f"tokmix.bench.{asked.what.replace('-', '_')}").run(session)
    session.save()
    if session.rows:
        say("\n" + "\n".join(TABLES[asked.what](session.rows)))
    if session.refused:
        say(f"\nrefused, since the numbers are wrong: {'; '.join(session.refused)}")
    if asked.out is not None:
        _draw(session, say)
        say(f"\nwrote {asked.out}")
    return session


def _draw(session: Session, say: Callable[[str], None]) -> None:
    assert session.asked.out is not None
    try:
        from tokmix.bench.draw import draw

        title = f"tokmix bench {session.asked.what}: {session.machine['words']}, {session.asked.dtype}, d = {session.asked.dim}"
        draw(session.asked.out.with_suffix(".png"), session.asked.what, session.rows, title)
    except ImportError as error:
        say(f"no picture: {error}")
