"""Settings, dataclasses with types and defaults, as options of a command line."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import typing
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any


def add_settings(parser: argparse.ArgumentParser, settings: type, prefix: str = "") -> None:
    """--prefix.name VALUE for every field; a bool is --name or --no-name. An option that is not given is absent from the
    result. The dataclass itself checks the values."""
    hints, notes = typing.get_type_hints(settings), _notes(settings)
    for field in fields(settings):
        option = "--" + prefix + (field.name if prefix else field.name.replace("_", "-"))
        about = re.sub(r"\bNone: ", "default: ", notes.get(field.name, ""))  # nobody types None on a command line
        if field.default is not None and field.default is not MISSING:
            about = f"{about} (default: {field.default})".strip()
        dest, about = prefix + field.name, about.replace("%", "%%")
        if hints[field.name] in (bool, bool | None):
            parser.add_argument(option, dest=dest, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=about)
            continue
        read, choices = _reader(hints[field.name])
        metavar = None if choices else "VALUE"
        parser.add_argument(option, dest=dest, type=read, choices=choices, metavar=metavar, default=argparse.SUPPRESS, help=about)


def given_settings(options: argparse.Namespace, settings: type, prefix: str = "") -> dict[str, Any]:
    """The fields that were given on the command line, by their full name."""
    names = [prefix + field.name for field in fields(settings)]
    return {name: getattr(options, name) for name in names if hasattr(options, name)}


def _notes(settings: type) -> dict[str, str]:
    """The comment after each field of the dataclass."""
    lines = inspect.getsource(settings).splitlines()
    tree = ast.parse(inspect.cleandoc("\n".join(lines)) if lines[0].startswith(" ") else "\n".join(lines)).body[0]
    assert isinstance(tree, ast.ClassDef)
    return {
        node.target.id: lines[(node.end_lineno or 1) - 1][node.end_col_offset or 0 :].partition("#")[2].strip()
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _reader(hint: object) -> tuple[Callable[[str], object], list[str] | None]:
    """The function that reads a word of the command line as a value of this type, and the choices of a Literal."""
    if typing.get_origin(hint) is typing.Literal:
        return str, list(typing.get_args(hint))
    parts = [part for part in typing.get_args(hint) if part is not type(None)] or [hint]
    if len(parts) == 1 and typing.get_origin(parts[0]) is typing.Literal:
        return str, list(typing.get_args(parts[0]))
    if any(typing.get_origin(part) is tuple for part in [*parts, hint]):
        return lambda word: tuple(word.split(",")), None
    return {int: int, float: float}.get(parts[0], str), None
