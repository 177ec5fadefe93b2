"""Settings, dataclasses with types and defaults, as options of a command line."""

from __future__ import annotations

import argparse
import ast
import inspect
import typing
from collections.abc import Callable
from dataclasses import fields
from typing import Any


def add_settings(parser: argparse.ArgumentParser, settings: type, prefix: str = "") -> None:
    """--prefix.name VALUE for every field; a bool is --name or --no-name. What was not said is left out of the result,
    and the dataclass itself checks what was."""
    hints, notes = typing.get_type_hints(settings), _notes(settings)
    for field in fields(settings):
        option = "--" + prefix + (field.name if prefix else field.name.replace("_", "-"))
        shown = notes.get(field.name, "")
        if field.default is not None:
            shown = f"{shown} (default: {field.default})".strip()
        dest, shown = prefix + field.name, shown.replace("%", "%%")
        if hints[field.name] in (bool, bool | None):
            parser.add_argument(option, dest=dest, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=shown)
            continue
        read, choices = _reader(hints[field.name])
        metavar = None if choices else "VALUE"
        parser.add_argument(option, dest=dest, type=read, choices=choices, metavar=metavar, default=argparse.SUPPRESS, help=shown)


def said(options: argparse.Namespace, settings: type, prefix: str = "") -> dict[str, Any]:
    """The fields that stood on the command line, by their full name."""
    given = vars(options)
    return {prefix + field.name: given[prefix + field.name] for field in fields(settings) if prefix + field.name in given}


def _notes(settings: type) -> dict[str, str]:
    """The comment behind each field, which is written for people who read the settings."""
    lines = inspect.getsource(settings).splitlines()
    tree = ast.parse(inspect.cleandoc("\n".join(lines)) if lines[0].startswith(" ") else "\n".join(lines)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = lines[(node.end_lineno or 1) - 1][node.end_col_offset or 0 :].partition("#")[2].strip()
    return found


def _reader(hint: object) -> tuple[Callable[[str], object], list[str] | None]:
    """How to read a word of the command line as a value of that type, and the choices where there are few."""
    if typing.get_origin(hint) is typing.Literal:
        return str, list(typing.get_args(hint))
    parts = [part for part in typing.get_args(hint) if part is not type(None)] or [hint]
    if len(parts) == 1 and typing.get_origin(parts[0]) is typing.Literal:
        return str, list(typing.get_args(parts[0]))
    if any(typing.get_origin(part) is tuple for part in [*parts, hint]):
        return lambda word: tuple(word.split(",")), None
    return {int: int, float: float}.get(parts[0], str), None
