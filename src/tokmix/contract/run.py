"""The whole contract on one mixer: `tokmix check my_mixer.py`."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tokmix.contract import layout, numbers, stepping  # noqa: F401 - they add their rules
from tokmix.contract.cases import Case, cases
from tokmix.contract.rules import RULES, Broken, Rule
from tokmix.core.mixer import MODES, Mixer, mixer_class, options
from tokmix.core.rowmixer import RowMixer


@dataclass
class Outcome:
    """One rule on all cases of a mixer that it applies to."""

    rule: str
    cases: int
    failures: dict[str, str] = field(default_factory=dict)  # case -> what is wrong
    advice: bool = False
    stopped: bool = False  # it failed, and later rules were not tried

    @property
    def failed(self) -> bool:
        return bool(self.failures) and not self.advice


def check_mixer(name: str, file: Path | None = None, only: str | None = None) -> Iterator[Outcome]:
    """Yield one outcome per rule. file: the source of the mixer, to name the line that failed. only: the rules with these words in
    their name."""
    said = declared(name)
    if said.failed or only is None:
        said.stopped = said.failed
        yield said
    if said.failed:
        return
    try:
        every, refused = cases([name])
    except Exception as error:
        yield Outcome("it can be made", 1, {name: describe(error, file)}, stopped=True)
        return
    if refused and only is None:
        shown = {case: f"refused: {error}" for case, error in refused.items()}
        yield Outcome("options that refuse a value", len(refused), shown, advice=True)
    for one in RULES:
        chosen = [case for case in every if one.applies(case)]
        if chosen and (only is None or only.lower() in one.name.lower()):
            outcome = _outcome(one, chosen, file)
            outcome.stopped = one.first and any(str(case) in outcome.failures for case in chosen if not case.options)
            yield outcome
            if outcome.stopped:
                return


def _outcome(one: Rule, chosen: list[Case], file: Path | None) -> Outcome:
    outcome = Outcome(one.name, len(chosen), advice=one.advice)
    for case in chosen:
        try:
            one.check(case)
        except Exception as error:  # any exception of a mixer is a failure of the mixer
            outcome.failures[str(case)] = describe(error, file)
    return outcome


def describe(error: Exception, file: Path | None = None) -> str:
    """One line: what went wrong, and the last line of the user's own file on the way there."""
    text = " ".join(str(error).split())
    text = text if len(text) <= 300 else text[:297] + "..."
    if isinstance(error, Broken):
        return text
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if file and Path(frame.filename).resolve() == file.resolve()]
    where = f" ({file.name if file else ''}, line {own[-1].lineno}, in {own[-1].name})" if own else ""
    return f"{type(error).__name__}: {text}{where}"


def declared(name: str) -> Outcome:
    """Check the declarations of a class before it is instantiated."""
    cls, wrong = mixer_class(name), {}
    modes = ", ".join(mode for mode in MODES if mode in cls.modes)
    if not cls.modes & {"bidirectional", "causal"}:
        wrong["modes"] = f"{modes}: a mixer offers 'bidirectional', 'causal' or both"
    elif "step" in cls.modes and "causal" not in cls.modes:
        wrong["modes"] = f"{modes}: 'step' continues a causal mixer, and 'causal' is missing"
    if not isinstance(getattr(cls, "order", None), str):
        wrong["order"] = 'it is missing: say how time grows with length, such as order = "T"'
    parameters = inspect.signature(cls.__init__).parameters
    causal = parameters.get("causal")
    if causal is not None and isinstance(causal.default, bool):
        wrong["causal"] = f"it has the default {causal.default!r}: a hidden one leaks the future sooner or later"
    for option, parameter in options(name).items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            wrong[option] = "options should be named: *args and **kwargs hide them from error messages and from this check"
        elif parameter.default is parameter.empty or parameter.annotation is parameter.empty:
            wrong[option] = "an option needs a type and a default"
    return Outcome("modes, order and options are declared", 1, wrong | wrong_signatures(cls))


def wrong_signatures(cls: type[Mixer]) -> dict[str, str]:
    """Methods that are missing or do not take the contract's arguments."""
    wrong = dict.fromkeys(sorted(cls.__abstractmethods__), "the method is missing")
    try:
        inspect.signature(cls).bind(1, causal=True, max_len=1, layer=0)
    except TypeError as error:
        wrong["__init__"] = f"{error}; it is called with (dim, causal=..., max_len=..., layer=..., options)"
    base = RowMixer if issubclass(cls, RowMixer) else Mixer
    for name in ("forward", "mix", "cross", "empty_state", "advance", "init_state", "step", "cost", "reach"):
        wanted = getattr(base, name, None)
        if wanted is None or name in wrong:
            continue
        parameters = inspect.signature(wanted).parameters.values()
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        keywords = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
        try:
            inspect.signature(getattr(cls, name)).bind(*positional, **keywords)
        except TypeError as error:
            shown = ", ".join([*positional, *(f"{key}=..." for key in keywords)])
            wrong[name] = f"{error}; it is called with ({shown})"
    return wrong
