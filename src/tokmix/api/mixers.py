"""Check mixers of your own against the contract."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokmix.contract.run import Outcome

SHOWN = 3  # failed cases shown per rule; the others are counted


def check(what: str | Path, *, only: str | None = None, say: Callable[[str], None] = lambda line: None) -> dict[str, list[Outcome]]:
    """what: a file with mixers, or the name of a known mixer -> the outcomes of each. only: rules with these words in their name."""
    from tokmix.contract.run import check_mixer
    from tokmix.core.mixer import mixer_class, mixers
    from tokmix.training.imports import import_files

    file = Path(what) if str(what).endswith(".py") or "/" in str(what) else None
    if file is None:
        names = [mixer_class(str(what)).kind]
    else:
        before = {name: mixer_class(name) for name in mixers()}
        import_files([file])
        names = [name for name in mixers() if name not in before or _is_in(mixer_class(name).__module__, file)]
        if not names:
            raise ValueError(f"{file} registers no mixer: decorate the class with @tokmix.register")
    found: dict[str, list[Outcome]] = {}
    for name in names:
        found[name] = []
        say(f"{name}: {', '.join(sorted(mixer_class(name).modes))}")
        for one in check_mixer(name, file, only):
            found[name].append(one)
            _print(one, say)
        if not found[name]:
            raise ValueError(f"no rule has {only!r} in its name; without --only all of them are named")
        failed = [one for one in found[name] if one.failed]
        rest = "; the others were not tried" if found[name][-1].stopped else ""
        say(f"{name}: {len(failed)} of {len(found[name])} rules fail{rest}" if failed else f"{name}: all {len(found[name])} rules hold")
    return found


def _is_in(module: str, file: Path) -> bool:
    import sys

    return getattr(sys.modules.get(module), "__file__", None) == str(file.resolve())


def _print(one: Outcome, say: Callable[[str], None]) -> None:
    state = ("note" if one.advice else "FAIL") if one.failures else "ok"
    say(f"  {state:4}  {one.rule} ({one.cases} case{'s' * (one.cases > 1)})")
    shown = list(one.failures.items())
    for case, failure in shown[:SHOWN]:
        say(f"          {case}: {failure}")
    if len(shown) > SHOWN:
        say(f"          and {len(shown) - SHOWN} more cases")
