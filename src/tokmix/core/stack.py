"""Stacks of mixers as text: 'hsm*3, attention(heads=8), (gmlp, fnet)*2' <-> a list of specs.

The text is used as a run's name, in checkpoints and in tables, so it can be converted both ways: `unparse` gives the
shortest text, and `parse` of it gives the same list again. Python's own parser reads the text, but nothing in it runs.
"""

from __future__ import annotations

import ast
import itertools
from dataclasses import dataclass, field

MOST_LAYERS = 10_000
MOST_CHARACTERS = 400_000  # longer text, from a file made to harm, would take minutes to read
SEARCHED = 100  # up to so many layers, all texts are compared for the shortest, which takes cubic time


@dataclass(frozen=True)
class Spec:
    """One mixer of a stack: its registry name and its own options."""

    name: str
    options: dict[str, object] = field(default_factory=dict)

    def integer(self, name: str, default: int = 1) -> int:
        value = self.options.get(name, default)
        assert isinstance(value, int)
        return value

    def __str__(self) -> str:
        options = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
        return f"{self.name}({options})" if options else self.name


def parse(text: str) -> list[Spec]:
    if not isinstance(text, str):
        raise ValueError(f"stack {text!r} should be text, such as 'hsm*3, attention(heads=8)'")
    if not text.strip():
        raise ValueError(f"stack {text!r} is empty; a stack looks like 'hsm*3, attention(heads=8)'")
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"stack {text[:60]!r}... has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read")
    try:
        specs = _expand(_tree(text), text)
    except (RecursionError, MemoryError):  # Python raises one of the two if brackets or operators are nested too deeply
        raise ValueError(f"stack {text[:60]!r}... is nested too deeply; a stack looks like 'hsm*3, attention(heads=8)'") from None
    if len(specs) > MOST_LAYERS:
        raise ValueError(f"stack {text[:60]!r}... has more than {MOST_LAYERS} layers")
    return specs


def _tree(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"stack {text!r} cannot be read: {reason}; a stack looks like 'hsm*3, attention(heads=8)'") from None


def _expand(node: ast.expr, text: str) -> list[Spec]:
    if isinstance(node, ast.Tuple):
        return [spec for element in node.elts for spec in _expand(element, text)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _repeat(node, text)
    if isinstance(node, ast.Name):
        return [Spec(node.id)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return [Spec(node.func.id, _options(node, text))]
    raise ValueError(f"stack {text!r}: {ast.unparse(node)!r} is neither a mixer, a call with options, nor a repetition like hsm*3")


def _repeat(node: ast.BinOp, text: str) -> list[Spec]:
    times = node.right.value if isinstance(node.right, ast.Constant) else None
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise ValueError(f"stack {text!r}: {ast.unparse(node.right)!r} is not a number of repetitions (1, 2, ...)")
    inner = _expand(node.left, text)
    if len(inner) * times > MOST_LAYERS:
        raise ValueError(f"stack {text!r} has more than {MOST_LAYERS} layers")
    return inner * times


def _options(call: ast.Call, text: str) -> dict[str, object]:
    options = {}
    if call.args:
        raise ValueError(f"stack {text!r}: options are given by name, as in heads=8, not {ast.unparse(call.args[0])!r}")
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(f"stack {text!r}: '**' cannot be used in options")
        if keyword.arg in options:
            raise ValueError(f"stack {text!r}: {keyword.arg} is given twice to one mixer")
        try:
            options[keyword.arg] = ast.literal_eval(keyword.value)
        except ValueError:
            raise ValueError(
                f"stack {text!r}: {keyword.arg}={ast.unparse(keyword.value)} is not a plain value; text needs quotes"
            ) from None
    return options


def unparse(specs: list[Spec]) -> str:
    """The shortest text that parses to these specs; for more than SEARCHED layers, a short one."""
    return _text([str(spec) for spec in specs])


def _text(words: list[str]) -> str:
    return _shortest(words) if len(words) <= SEARCHED else _short(words)


def _short(words: list[str]) -> str:
    """One repetition if the whole list is periodic, else run by run."""
    for period in _periods(words):
        return _times(_text(words[:period]), period, len(words) // period)
    runs = [(word, len(list(run))) for word, run in itertools.groupby(words)]
    return ", ".join(_times(word, 1, times) if times > 1 else word for word, times in runs)


def _shortest(words: list[str]) -> str:
    n = len(words)
    best: dict[tuple[int, int], str] = {(i, i + 1): words[i] for i in range(n)}
    for length in range(2, n + 1):
        for i in range(n - length + 1):
            j = i + length
            ways = [f"{best[i, k]}, {best[k, j]}" for k in range(i + 1, j)]
            ways += [_times(best[i, i + p], p, length // p) for p in _periods(words[i:j])]
            best[i, j] = min(ways, key=len)
    return best[0, n] if n else ""


def _periods(words: list[str]) -> list[int]:
    n = len(words)
    return [p for p in range(1, n) if n % p == 0 and words == words[:p] * (n // p)]


def _times(unit: str, size: int, times: int) -> str:
    return f"{unit}*{times}" if size == 1 else f"({unit})*{times}"
