"""Checks of user input. A message names the value, the possible choices and the one that is nearest to the value."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Control characters, with the one that starts escape sequences, and characters that change the writing direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def nearest(value: object, choices: Iterable[str]) -> str:
    """The text ", did you mean 'x'?" if one of the choices is close to the value, else an empty text."""
    close = difflib.get_close_matches(str(value), list(choices), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


@contextmanager
def reading_model(folder: object) -> Iterator[None]:
    """What other packages raise about a folder, as one kind of error that names the folder."""
    try:
        yield
    except (ValueError, OSError, ImportError):
        raise
    except Exception as error:
        raise ValueError(
            f"{folder} holds no model that can be read: {' '.join(f'{type(error).__name__}: {error}'.split())[:300]}"
        ) from None


def one_of(what: str, value: object, choices: Iterable[str]) -> None:
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"unknown {what} {value!r}; known: {', '.join(map(str, choices))}{nearest(value, choices)}")


def at_least(what: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what}={value!r} is not a whole number of at least {least}")


def within(what: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{what}={value!r} is outside {low} to {high}")


def divides(what: str, part: int, whole_name: str, whole: int) -> None:
    at_least(what, part, 1)
    at_least(whole_name, whole, 1)
    if whole % part:
        divisors = [n for n in range(1, whole + 1) if whole % n == 0]
        close = min(divisors, key=lambda n: abs(n - part))
        raise ValueError(f"{what}={part} does not divide {whole_name}={whole}; the nearest that does is {close}")


def is_there(path: str | Path) -> bool:
    """Whether a file or folder of this name exists. False also for a name that the system refuses, such as a stack of 300 letters."""
    try:
        return Path(path).exists()
    except OSError:
        return False


def printable(text: str) -> str:
    """The text with control characters written as escapes, except line ends and tabs: printed data must not control the terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def check_text(text: object) -> None:
    """Refuse what is not text, and text that was not utf-8: Python reads such bytes from a command line or a pipe as surrogates, which
    cannot be encoded."""
    if not isinstance(text, str):
        raise ValueError(f"{str(text)[:60]!r} is of type {type(text).__name__}, not text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text {text[:60]!r} is not utf-8 at letter {error.start + 1}: convert it to utf-8") from None


def typed(what: str, value: object, hint: object) -> None:
    """Check a value against a type annotation: Literal, unions, tuples, and plain types (a bool is not an int)."""
    if not _fits(value, hint):
        choices = _choices(hint)
        if choices:
            raise ValueError(f"{what}={value!r} is unknown; known: {', '.join(map(repr, choices))}{nearest(value, map(str, choices))}")
        raise ValueError(f"{what}={value!r} should be of type {hint.__name__ if isinstance(hint, type) else hint}")


def _fits(value: object, hint: object) -> bool:
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in typing.get_args(hint))
    if origin is tuple:
        inner = typing.get_args(hint)[0]
        return isinstance(value, tuple) and len(value) > 0 and all(_fits(item, inner) for item in value)
    if hint is None or hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return not isinstance(hint, type) or isinstance(value, hint)


def _choices(hint: object) -> list[object]:
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    return [choice for part in typing.get_args(hint) for choice in _choices(part)]
