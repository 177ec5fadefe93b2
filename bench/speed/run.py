"""One benchmark from start to end: run it, print its table, write its JSON file and its picture."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path

from bench.speed import table
from bench.speed.session import Row, Session
from bench.speed.settings import BenchSettings
from tokmix.cli.commands.bench import READ

TABLES = {
    "ops": table.ops,
    "layers": table.ops,
    "decode": table.decode,
    "train": table.train,
    "train-loop": table.train_loop,
    "user": table.user,
}


def run(asked: BenchSettings, say: Callable[[str], None] = print) -> Session:
    if asked.out is not None:
        _check_out(asked.out, asked.what)
    session = Session(asked, say)
    importlib.import_module(f"bench.speed.{asked.what.replace('-', '_')}").run(session)
    session.check_names()
    session.save()
    if session.rows:
        say("\n" + "\n".join(TABLES[asked.what](session.rows)))
    if session.models:
        say("\n" + "\n".join(table.models(session.models)))
    problems = {check["name"]: check["problem"] for check in session.checks if "problem" in check}
    if wrong := [name for name in session.refused if name not in problems]:
        say(f"\nrefused, since the numbers are wrong: {'; '.join(wrong)}")
    if problems:
        say(f"\nrefused, since it fails: {'; '.join(f'{name}: {problem}' for name, problem in problems.items())}")
    if asked.out is not None:
        _draw(session, say)
        say(f"\nwrote {asked.out}")
    return session


def _check_out(out: Path, what: str) -> None:
    """Only files of an earlier run of the same benchmark are replaced."""
    if not out.parent.is_dir():
        raise ValueError(f"{out.parent} is no folder: {out} cannot be written")
    if out.suffix != ".json":
        raise ValueError(f"--out {out} should name a .json file; a picture goes beside it")
    if out.is_dir():
        raise ValueError(f"--out {str(out)!r} is a folder: name a file in it")
    picture = out.with_suffix(".png")
    if out.exists() and not _wrote(out, what):
        raise ValueError(f"{out} exists and is not of tokmix bench {what}: nothing is overwritten; name another file")
    if picture.exists() and not out.exists():
        raise ValueError(f"{picture} exists, and the picture would go there: nothing is overwritten; name another file")


def _wrote(out: Path, what: str) -> bool:
    try:
        found = json.loads(out.read_text(encoding="utf-8"))
    except ValueError:  # neither JSON nor text
        return False
    return isinstance(found, dict) and found.get("bench") == what and "asked" in found and "rows" in found


def title_of(record: Row) -> str:
    """Title with dtype and width, if the benchmark reads them."""
    asked = record["asked"]
    sizes = {"dtype": str(asked["dtype"]), "dim": f"d = {asked['dim']}"}
    shown = [words for name, words in sizes.items() if name in READ[record["bench"]]]
    return f"tokmix bench {record['bench']}: " + ", ".join([record["machine"]["words"], *shown])


def _draw(session: Session, say: Callable[[str], None]) -> None:
    assert session.asked.out is not None
    try:
        from bench.speed.draw import draw

        draw(session.asked.out.with_suffix(".png"), session.asked.what, session.rows, title_of(session.record()))
    except ImportError as error:
        say(f"no picture: {error}")
