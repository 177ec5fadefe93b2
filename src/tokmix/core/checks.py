"""Checks of what a user gave: every message names the thing, what is known, and the nearest known one."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable
from pathlib import Path

# Control characters, escape sequences among them, and those that turn the direction of writing.
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def nearest(given: object, known: Iterable[str]) -> str:
    """ ", did you mean 'x'?" when something known is close to what was given, else nothing."""
    close = difflib.get_close_matches(str(given), list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def one_of(what: str, given: object, known: Iterable[str]) -> None:
    known = list(known)
    if given not in known:
        raise ValueError(f"unknown {what} {given!r}; known: {', '.join(map(str, known))}{nearest(given, known)}")


def at_least(what: str, given: object, least: int) -> None:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise ValueError(f"{what}={given!r} is not a whole number of at least {least}")


def within(what: str, given: float, low: float, high: float) -> None:
    if not low <= given <= high:
        raise ValueError(f"{what}={given!r} is outside {low} to {high}")


def divides(what: str, part: int, whole_name: str, whole: int) -> None:
    at_least(what, part, 1)
    at_least(whole_name, whole, 1)
    if whole % part:
        fits = [n for n in range(1, whole + 1) if whole % n == 0]
        close = min(fits, key=lambda n: abs(n - part))
        raise ValueError(f"{what}={part} does not divide {whole_name}={whole}; the nearest that does is {close}")


def is_there(path: str | Path) -> bool:
    """Whether a file or folder has this name. What no file system takes as a name, such as a stack of 300 letters, is not there."""
    try:
        return Path(path).exists()
    except OSError:
        return False


def printable(text: str) -> str:
    """With control characters spelled out, but for line ends and tabs: a label or a text must not steer the terminal it is shown on."""
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def check_text(text: str) -> None:
    """Bytes that are not utf-8 come from a command line or a pipe as halves of characters, which nothing can encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text {text[:60]!r} is not utf-8 at letter {error.start + 1}: convert it to utf-8") from None


def typed(what: str, given: object, hint: object) -> None:
    """Check a value against a type annotation: Literal, unions, tuples, and plain types (a bool is not an int)."""
    if not _fits(given, hint):
        choices = _choices(hint)
        if choices:
            raise ValueError(f"{what}={given!r} is unknown; known: {', '.join(map(repr, choices))}{nearest(given, map(str, choices))}")
        raise ValueError(f"{what}={given!r} should be of type {_spell(hint)}")


def _fits(given: object, hint: object) -> bool:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return any(given == known and type(given) is type(known) for known in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return any(_fits(given, part) for part in typing.get_args(hint))
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        return isinstance(given, tuple) and len(given) > 0 and all(_fits(item, inner) for item in given)
    if hint is None or hint is type(None):
        return given is None
    if hint is float:
        return isinstance(given, (int, float)) and not isinstance(given, bool)
    if hint is int:
        return isinstance(given, int) and not isinstance(given, bool)
    return not isinstance(hint, type) or isinstance(given, hint)


def _choices(hint: object) -> list[object]:
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [choice for part in typing.get_args(hint) for choice in _choices(part)]


def _spell(hint: object) -> str:
    return getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
