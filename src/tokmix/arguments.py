"""Settings, a dataclass with types and defaults, as options of a command line."""

from __future__ import annotations

import argparse
import typing
from dataclasses import MISSING, fields
from typing import Any


def add_settings(parser: argparse.ArgumentParser, settings: type) -> None:
    """--name VALUE for every field; a bool is --name or --no-name. The dataclass itself checks what comes in."""
    hints = typing.get_type_hints(settings)
    for field in fields(settings):
        option, default = "--" + field.name.replace("_", "-"), field.default
        assert default is not MISSING, f"{settings.__name__}.{field.name} has no default"
        if hints[field.name] is bool:
            parser.add_argument(option, dest=field.name, action=argparse.BooleanOptionalAction, default=default)
            continue
        shown = "" if default is None else f"default: {default}"
        kind, choices = _reader(hints[field.name])
        parser.add_argument(
            option, dest=field.name, type=kind, choices=choices, default=default, help=shown, metavar=None if choices else "VALUE"
        )


def _reader(hint: Any) -> tuple[Any, list[Any] | None]:
    """How to read a word of the command line as a value of that type, and the choices where there are few."""
    parts = [part for part in (typing.get_args(hint) or (hint,)) if part is not type(None)]
    if typing.get_origin(hint) is typing.Literal:
        return str, list(typing.get_args(hint))
    if len(parts) == 1 and typing.get_origin(parts[0]) is typing.Literal:
        return str, list(typing.get_args(parts[0]))
    if any(typing.get_origin(part) is tuple for part in parts):
        return lambda word: tuple(word.split(",")), None
    return {int: int, float: float}.get(parts[0], str), None
