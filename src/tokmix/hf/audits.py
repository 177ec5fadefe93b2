"""Find what leaks in a model: padding, neighbours in a batch, other documents of a packed row, a cache, the future.

    report = tokmix.hf.audit(model)      # a model of transformers or a tokmix.Model
    print(report); assert report.ok

Each check runs the model in two ways that must give the same, on random tokens, in float64, and tells the largest deviation
(relative to the largest output) and the layer where it first occurs. The model itself is not changed.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from tokmix.core import checks
from tokmix.core.model import Model
from tokmix.hf.config import TokmixConfig
from tokmix.hf.models import MODELS

ALLOWED = 1e-5  # parts of many models compute in float32 whatever they are given
HALF = 0.25  # of the largest output, in bfloat16
LENGTHS = (13, 7, 2, 10)


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
        return all(finding.verdict in ("clean", "n/a") for finding in self.findings)

    def __str__(self) -> str:
        lines = [f"{self.model}: {'clean' if self.ok else 'FAULTS'}", f"{'check':22} {'verdict':6} deviation  where it first occurs"]
        return "\n".join([*lines, *map(str, self.findings)])

    def as_dict(self) -> dict[str, Any]:
        return {"model": self.model, "ok": self.ok, "findings": [asdict(finding) for finding in self.findings]}


class NotHere(Exception):
    """A check does not apply to the model."""


@dataclass(frozen=True)
class Run:
    """hidden: after the embedding and after each layer, then the output; [B, T, ...], or [B, ...] for one output a sequence."""

    hidden: list[Tensor]
    cache: Any = None

    def of(self, row: int, at: slice) -> list[Tensor]:
        """The tokens of one row; of an output of the whole sequence that itself."""
        width = self.hidden[0].shape[1]
        return [x[row, at] if x.dim() > 2 or (x.dim() == 2 and x.shape[1] == width) else x[row] for x in self.hidden]


class Subject:
    """The model under audit, and how it is called."""

    def __init__(self, model: PreTrainedModel, seed: int):
        self.model, self.config = model, model.config
        self.takes = set(inspect.signature(model.forward).parameters)
        self.own = isinstance(self.config, TokmixConfig)
        self.causal = self.config.causal if self.own else bool(model.can_generate() or getattr(self.config, "is_decoder", False))
        self.decodes = self.causal and "past_key_values" in self.takes
        self.generator = torch.Generator().manual_seed(seed)
        self.text = model.main_input_name == "input_ids"
        pad = getattr(self.config, "pad_token_id", None)
        self.pad = pad if isinstance(pad, int) and pad >= 0 else None

    def ids(self, rows: int, length: int) -> Tensor:
        if not self.text:
            raise NotHere("for models of tokens")
        special = {getattr(self.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "cls", "sep")}
        known = [number for number in range(min(self.config.vocab_size, 1000)) if number not in special]
        return torch.tensor(known)[torch.randint(len(known), (rows, length), generator=self.generator)]

    def run(self, ids: Tensor, **given: Any) -> Run:
        if self.decodes:
            given.setdefault("use_cache", False)
        name = "pixel_values" if ids.is_floating_point() and not self.text else "inputs_embeds" if ids.is_floating_point() else "input_ids"
        done = self.model(**{name: ids}, output_hidden_states=True, **{key: value for key, value in given.items() if value is not None})
        hidden = done.hidden_states
        if hidden is None:
            raise NotHere("the model gives no hidden states")
        outputs = [done[name] for name in ("logits", "last_hidden_state", "start_logits") if name in done]
        return Run([*hidden, *outputs], done.get("past_key_values"))

    def alone(self, rows: Iterable[Tensor]) -> list[Run]:
        return [self.run(row[None]) for row in rows]

    def positions(self, mask: Tensor) -> Tensor | None:
        """Of a row padded on the left, as generate() gives them."""
        return (mask.cumsum(1) - 1).clamp(min=0) if "position_ids" in self.takes else None


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


Pairs = list[tuple[list[Tensor], list[Tensor]]]


def _padded(subject: Subject, left: bool, together: bool) -> Pairs:
    width = max(LENGTHS)
    rows = [subject.ids(1, n)[0] for n in LENGTHS]
    filler = subject.ids(len(LENGTHS), width) if subject.pad is None else torch.full((len(LENGTHS), width), subject.pad)
    mask, places = torch.zeros(len(LENGTHS), width, dtype=torch.long), []
    for number, row in enumerate(rows):
        at = slice(width - len(row), width) if left else slice(0, len(row))
        filler[number, at], mask[number, at] = row, 1
        places.append(at)
    expected = subject.alone(rows)
    more = {"position_ids": subject.positions(mask)} if left else {}
    if together:
        found = subject.run(filler, attention_mask=mask, **more)
        return [(found.of(i, at), expected[i].of(0, slice(None))) for i, at in enumerate(places)]
    singles = [subject.run(filler[i : i + 1], attention_mask=mask[i : i + 1], **_row(more, i)) for i in range(len(rows))]
    return [(singles[i].of(0, at), expected[i].of(0, slice(None))) for i, at in enumerate(places)]


def _row(more: dict[str, Tensor | None], i: int) -> dict[str, Tensor | None]:
    return {name: None if value is None else value[i : i + 1] for name, value in more.items()}


def right_padding(subject: Subject) -> Pairs:
    return _padded(subject, left=False, together=True)


def left_padding(subject: Subject) -> Pairs:
    if not (subject.causal or subject.own):
        raise NotHere("encoders of transformers pad on the right")
    return _padded(subject, left=True, together=True)


def one_row_with_mask(subject: Subject) -> Pairs:
    return _padded(subject, left=False, together=False)


def batch_composition(subject: Subject) -> Pairs:
    if subject.text:
        first, others = subject.ids(1, 11), [subject.ids(2, 11) for _ in range(2)]
    else:
        size, channels = subject.config.image_size, getattr(subject.config, "num_channels", 3)
        draw = [torch.randn(n, channels, size, size, generator=subject.generator, dtype=torch.float64) for n in (1, 2, 2)]
        first, others = draw[0], draw[1:]
    runs = [subject.run(torch.cat([first, more])) for more in others]
    return [(runs[0].of(0, slice(None)), runs[1].of(0, slice(None)))]


def packed_rows(subject: Subject) -> Pairs:
    if not (subject.own or (subject.causal and "position_ids" in subject.takes)):
        raise NotHere("the model is given no document borders")
    lengths = (5, 8, 3)
    rows = [subject.ids(1, n)[0] for n in lengths]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    found = subject.run(torch.cat(rows)[None], position_ids=positions)
    expected, start, pairs = subject.alone(rows), 0, []
    for run, n in zip(expected, lengths, strict=True):
        at = slice(start, start + n)
        whole, start = run.of(0, slice(None)), start + n
        pairs.append((found.of(0, at)[: len(whole) - 1], whole[:-1]) if whole[-1].dim() < 2 else (found.of(0, at), whole))
    return pairs


def _in_pieces(subject: Subject, sizes: list[int]) -> Pairs:
    if not subject.decodes:
        raise NotHere("the model has no cache")
    ids, cache, pieces, start = subject.ids(2, sum(sizes)), None, [], 0
    for size in sizes:
        run = subject.run(ids[:, start : start + size], past_key_values=cache, use_cache=True)
        cache, start = run.cache, start + size
        pieces.append(run.hidden)
    whole = subject.run(ids).hidden
    joined = [torch.cat(parts, dim=1) for parts in zip(*pieces, strict=True)]
    return [(joined, whole)]


def chunked_prefill(subject: Subject) -> Pairs:
    return _in_pieces(subject, [5, 6, 3])


def cache_token_by_token(subject: Subject) -> Pairs:
    return _in_pieces(subject, [4] + [1] * 8)


def future_gradient(subject: Subject) -> Pairs:
    """What a token's hidden states and output owe to later tokens: nothing, in a causal model."""
    if not subject.causal:
        raise NotHere("the model reads both ways")
    vectors = subject.model.get_input_embeddings()(subject.ids(1, 9)).detach().requires_grad_()
    with torch.enable_grad():
        hidden = [x for x in subject.run(vectors).hidden if x.dim() == 3]
        grads = [
            torch.autograd.grad(x[:, 4].sum() + x[:, 4].square().sum(), vectors, retain_graph=True, allow_unused=True)[0] for x in hidden
        ]
    pairs: tuple[list[Tensor], list[Tensor]] = ([], [])
    for grad in grads:
        grad = torch.zeros_like(vectors) if grad is None else grad
        clean = grad.clone()
        clean[:, 5:] = 0
        pairs[0].append(grad)
        pairs[1].append(clean)
    return [pairs]


def compiled(subject: Subject) -> Pairs:
    ids = subject.ids(2, 12)
    expected = subject.run(ids)
    mask = torch.ones_like(ids)
    torch._dynamo.reset()
    quick: Any = torch.compile(subject.model)
    other = copy.copy(subject)
    other.model = quick
    return [(other.run(ids).hidden, expected.hidden), (other.run(ids, attention_mask=mask).hidden, expected.hidden)]


def half_precision(subject: Subject) -> Pairs:
    ids = subject.ids(2, 12)
    expected = subject.run(ids)
    other = copy.copy(subject)
    other.model = copy.deepcopy(subject.model).to(torch.bfloat16)  # type: ignore[arg-type]
    return [(other.run(ids).hidden, expected.hidden)]


CHECKS: dict[str, Callable[[Subject], Pairs]] = {
    "right padding": right_padding,
    "left padding": left_padding,
    "batch composition": batch_composition,
    "one row with a mask": one_row_with_mask,
    "packed rows": packed_rows,
    "chunked prefill": chunked_prefill,
    "cache": cache_token_by_token,
    "gradient of the future": future_gradient,
    "half precision": half_precision,
    "compile": compiled,
}


def audit(model: nn.Module, *, only: Iterable[str] | None = None, compile: bool = False, seed: int = 0) -> Report:
    """only: these checks alone (their names are in tokmix.hf.audits.CHECKS); compile: also torch.compile against eager, which is slow."""
    chosen = [name for name in CHECKS if name != "compile" or compile] if only is None else list(only)
    for name in chosen:
        checks.one_of("check", name, CHECKS)
    subject = Subject(_subject(model), seed)
    name = type(model).__name__ if isinstance(model, PreTrainedModel) else f"tokmix.Model({model.config.stack!r})"  # type: ignore[union-attr]
    with torch.no_grad():
        return Report(name, [_check(subject, check) for check in chosen])


def load_any(folder: str) -> PreTrainedModel:
    """A folder of `train`, a folder of transformers or a name on the hub, as the class that wrote it."""
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
    return copy.deepcopy(model).to(device="cpu", dtype=torch.float64).eval()  # type: ignore[arg-type, call-arg]


def _check(subject: Subject, check: str) -> Finding:
    allowed = HALF if check == "half precision" else ALLOWED
    try:
        deviation, where = _compare(CHECKS[check](subject), allowed)
    except NotHere as reason:
        return Finding(check, "n/a", note=str(reason))
    except ValueError as error:  # a refusal is honest: it gives no wrong number
        return Finding(check, "n/a", note=f"refused: {' '.join(str(error).split())}")
    wrong = "WRONG" if check in ("cache", "chunked prefill", "compile", "half precision") else "LEAK"
    return Finding(check, "clean" if where is None else wrong, deviation, allowed, where)
