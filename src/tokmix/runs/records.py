"""Records: dataclasses stored as JSON. Each is read and checked in one place, by its type hints.

from_json(Card, known, path)  ->  Card, or Damaged: "FOLDER is damaged: card.json has no 'labels' that can be read"
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tokmix.runs.files import Damaged

T = TypeVar("T")


def check_format(known: Mapping[str, object], path: Path, format: str, versions: tuple[int, ...], what: str) -> None:
    """Refuse another format, or a version that cannot be read."""
    if known.get("format") != format:
        raise ValueError(f"{path} does not describe {what}")
    if isinstance(known.get("version"), bool) or known.get("version") not in versions:
        raise ValueError(f"{path} has format version {known.get('version')!r}; this tokmix reads version {versions[-1]}")


def from_json(kind: type[T], known: Mapping[str, object], path: Path) -> T:
    """A dataclass from JSON. Every field must be present (unless it has a default), of its type, and finite."""
    return typing.cast(T, _build(kind, known, path, ""))


def _build(kind: Any, known: Mapping[str, object], path: Path, prefix: str) -> Any:
    hints, given = typing.get_type_hints(kind), dict(known)
    made = {}
    for field in dataclasses.fields(kind):
        name = prefix + field.name
        if field.name not in given:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise Damaged(f"{path} is damaged: {path.name} has no {name!r}")
            continue
        made[field.name] = _value(hints[field.name], given.pop(field.name), path, name)
    if given:
        raise Damaged(f"{path} is damaged: {path.name} has an unknown field {prefix + next(iter(given))!r}")
    return kind(**made)


def _value(hint: Any, value: object, path: Path, name: str) -> Any:
    if hint is Any or hint is object:
        return value
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return _build(hint, value, path, f"{name}.")
    if origin in (typing.Union, types.UnionType):
        for part in inner:
            try:
                return _value(part, value, path, name)
            except Damaged:
                continue
    elif origin is typing.Literal:
        if value in inner:
            return value
    elif origin is list and isinstance(value, list):
        return [_value(inner[0], one, path, f"{name}[{place}]") for place, one in enumerate(value)]
    elif origin is tuple and isinstance(value, list):
        return tuple(_value(inner[0], one, path, f"{name}[{place}]") for place, one in enumerate(value))
    elif origin is dict and isinstance(value, dict):
        return {key: _value(inner[1], one, path, f"{name}.{key}") for key, one in value.items()}
    elif _plain(hint, value):
        return value
    raise Damaged(f"{path} is damaged: {path.name} has no {name!r} that can be read")


def _plain(hint: object, value: object) -> bool:
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(hint, type) and isinstance(value, hint)
