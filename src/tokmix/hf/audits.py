"""Find what leaks in a model: padding, neighbours in a batch, other documents of a packed row, a cache, the future.

    report = tokmix.hf.audit(model)      # a model of transformers or a tokmix.Model
    print(report); assert report.ok

Each check runs the model in two ways that must give the same, on random tokens, in float64, and tells the largest deviation
(relative to the largest output) and the layer where it first occurs. The model itself is not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from tokmix.core import checks
from tokmix.core.model import Model
from tokmix.hf.audit_checks import CHECKS
from tokmix.hf.audit_subject import NotHere, Subject
from tokmix.hf.config import TokmixConfig
from tokmix.hf.models import MODELS

ALLOWED = 1e-5  # parts of many models compute in float32 whatever they are given
HALF = 0.25  # of the largest output, in bfloat16


@dataclass(frozen=True)
class Finding:
    """One check. verdict: clean, LEAK (or WRONG, where the two ways are both meant to be exact), n/a."""

    check: str
    verdict: str
    deviation: float | None = None
    allowed: float | None = None
    where: str | None = None
    note: str = ""

    def __str__(self) -> str:
        number = "" if self.deviation is None else f"{self.deviation:9.1e}"
        return f"{self.check:22} {self.verdict:6} {number:9}  {self.where or ''}{self.note}".rstrip()


@dataclass(frozen=True)
class Report:
    model: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Some check ran, and none found a fault."""
        verdicts = {finding.verdict for finding in self.findings}
        return "clean" in verdicts and verdicts <= {"clean", "n/a"}

    def __str__(self) -> str:
        found = [finding.verdict for finding in self.findings]
        lines = [
            f"{self.model}: {'clean' if self.ok else 'FAULTS' if set(found) - {'clean', 'n/a'} else 'nothing could be checked'}",
            f"{'check':22} {'verdict':6} deviation  where it first occurs",
        ]
        return "\n".join([*lines, *map(str, self.findings)])

    def as_dict(self) -> dict[str, object]:
        return {"model": self.model, "ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}


def _compare(pairs: Iterable[tuple[list[Tensor], list[Tensor]]], allowed: float) -> tuple[float, str | None]:
    """(the largest deviation of the output or a layer, where it first exceeds what is allowed)"""
    worst: dict[int, float] = {}
    depth = 0
    for found, expected in pairs:
        depth = len(found)
        for number, (a, b) in enumerate(zip(found, expected, strict=True)):
            if a.numel():
                gap = (a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1e-12)
                worst[number] = max(worst.get(number, 0.0), float("inf") if torch.isnan(gap) else float(gap))
    first = next((number for number in sorted(worst) if worst[number] > allowed), None)
    names = {0: "embedding", depth - 1: "output"}
    return max(worst.values(), default=0.0), None if first is None else names.get(first, f"layer {first}")


def audit(model: nn.Module, *, only: Iterable[str] | None = None, compile: bool = False, seed: int = 0) -> Report:
    """only: these checks alone (names: tokmix.hf.audit_checks.CHECKS); compile: also torch.compile against eager, which is slow."""
    chosen = [name for name in CHECKS if name != "compile" or compile] if only is None else list(only)
    for name in chosen:
        checks.one_of("check", name, CHECKS)
    subject = Subject(_subject(model), seed)
    name = type(model).__name__ if isinstance(model, PreTrainedModel) else f"tokmix.Model({model.config.stack!r})"  # type: ignore[union-attr]
    with torch.no_grad():
        return Report(name, [_check(subject, check) for check in chosen])


def load_any(folder: str) -> PreTrainedModel:
    """A folder of `train`, a folder of transformers or a name on the hub, as the class that wrote it."""
    with checks.reading_model(folder):
        config = AutoConfig.from_pretrained(folder)
        if isinstance(config, TokmixConfig):
            return MODELS[config.head].from_pretrained(folder)
        named = getattr(transformers, (config.architectures or ["AutoModel"])[0], None)
        if named is None:
            raise ValueError(f"{folder} is of class {config.architectures[0]!r}, which this version of transformers does not have")
        return named.from_pretrained(folder)


def _subject(model: nn.Module) -> PreTrainedModel:
    """A copy in float64, in eval mode, on the CPU."""
    if isinstance(model, Model):
        wrapped = MODELS[model.config.head](TokmixConfig.from_core(model.config))
        wrapped.core.load_state_dict(model.state_dict())
        model = wrapped
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"audit takes a model of transformers or a tokmix.Model, not a {type(model).__name__}")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"audit does not know encoder-decoders such as {type(model).__name__}; give the encoder alone (T5EncoderModel)")
    made: PreTrainedModel = copy.deepcopy(model).to(device="cpu", dtype=torch.float64).eval()  # type: ignore[arg-type, call-arg]
    made.set_experts_implementation("eager")  # the others have no float64
    return made


def _check(subject: Subject, check: str) -> Finding:
    allowed = HALF if check == "half precision" else ALLOWED
    wrong = "WRONG" if check in ("cache", "chunked prefill", "compile", "half precision") else "LEAK"
    try:
        deviation, where = _compare(CHECKS[check](subject), allowed)
    except NotHere as reason:
        return Finding(check, "n/a", note=str(reason))
    except ValueError as error:  # a refusal is honest: it gives no wrong number
        return Finding(check, "n/a", note=f"refused: {' '.join(str(error).split())}")
    except Exception as error:  # the model fails where it should give the same
        return Finding(check, "WRONG", note=f"raises {type(error).__name__}: {' '.join(str(error).split())[:200]}")
    return Finding(check, "clean" if where is None else wrong, deviation, allowed, where)
