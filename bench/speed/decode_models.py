"""The second half of `tokmix bench decode`: tokens a second of whole language models by `tokmix.generate`, next to Hugging Face's
GPT-2 of the same depth, width, heads and feed-forward. All run in one process, in turns. The first new token, which reads the prompt, is
timed separately.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bench.speed.session import Row, Session
from tokmix.core.model import Model, ModelConfig
from tokmix.core.sampling import generate

STACKS = ("(hsm*3, attention(heads={heads}))*2", "attention(heads={heads})*8")
RIVAL = "GPT-2"
Run = Callable[[], Iterator[object]]  # yields once per new token


@dataclass(frozen=True)
class Size:
    dim: int = 512
    heads: int = 8
    vocab: int = 8192
    prompt: int = 512
    new: int = 128
    turns: int = 5


QUICK = Size(dim=32, heads=2, vocab=64, prompt=16, new=6, turns=2)


def run(session: Session) -> None:
    size = QUICK if session.asked.quick else Size()
    prompt = torch.randint(0, size.vocab, (1, size.prompt), generator=torch.Generator().manual_seed(0)).to(session.device)
    rows, runs = _ours(session, size, prompt)
    try:
        more, rivals = _gpt2(session, size, prompt)
        rows, runs = rows + more, runs + rivals
    except ImportError as error:
        session.note(f"{RIVAL}: transformers is not installed ({error}): pip install transformers")
    if not rows:
        return
    for row in rows:
        row |= {
            "batch": 1,
            "N": size.prompt,
            "new": size.new,
            "dim": size.dim,
            "vocab": size.vocab,
            "layers": 8,
            "prefill_ms": [],
            "rates": [],
        }
    for turn in range(size.turns + 1):  # the first one warms up
        for row, once in zip(rows, runs, strict=True):
            first, rate = _timed(session, once, size.new)
            if turn:
                row["prefill_ms"].append(first * 1e3)
                row["rates"].append(rate)
    session.models = _with_ratios(rows)
    session.save()


def _with_ratios(rows: list[Row]) -> list[Row]:
    """Medians, and ratios to the faster of GPT-2's two caches in the same turn."""
    rivals = [row["rates"] for row in rows if row["name"] == RIVAL]
    for row in rows:
        row["tokens_per_s"], row["first_token_ms"] = statistics.median(row["rates"]), statistics.median(row.pop("prefill_ms"))
        if rivals:
            row["ratios"] = [rate / max(turn) for rate, turn in zip(row["rates"], zip(*rivals, strict=True), strict=True)]
            row["ratio"] = statistics.median(row["ratios"])
    return rows


def _timed(session: Session, once: Run, new: int) -> tuple[float, float]:
    """Seconds to the first token, and tokens a second after it."""
    now = time.perf_counter
    began = now()
    tokens = once()
    next(tokens)
    _wait(session)
    middle = now()
    for _ in tokens:
        pass
    _wait(session)
    return middle - began, (new - 1) / (now() - middle)


def _wait(session: Session) -> None:
    if session.device == "cuda":
        torch.cuda.synchronize()


def _ours(session: Session, size: Size, prompt: Tensor) -> tuple[list[Row], list[Run]]:
    rows: list[Row] = []
    runs: list[Run] = []
    for stack in STACKS:
        name = stack.format(heads=size.heads)
        if session.wanted(name):
            config = ModelConfig(stack=name, dim=size.dim, vocab=size.vocab, head="lm", causal=True, max_len=size.prompt + size.new)
            torch.manual_seed(0)
            model = Model(config).to(session.device, session.dtype).eval()
            rows.append({"name": name, "body": "tokmix.generate", "parameters": model.parameter_count()})
            runs.append(partial(_generated, model, prompt.tolist(), size.new))
    return rows, runs


def _generated(model: Model, prompts: list[list[int]], new: int) -> Iterator[object]:
    return generate(model, prompts, max_new=new, stream=True)


def _gpt2(session: Session, size: Size, prompt: Tensor) -> tuple[list[Row], list[Run]]:
    if not session.wanted(RIVAL):
        return [], []
    from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, StaticCache

    config = GPT2Config(
        vocab_size=size.vocab, n_positions=size.prompt + size.new, n_embd=size.dim, n_layer=8, n_head=size.heads, n_inner=2 * size.dim,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    torch.nn.Module.to(model, session.device, session.dtype)
    step = torch.compile(model, mode="reduce-overhead") if session.device == "cuda" else model

    places = torch.arange(size.prompt, size.prompt + size.new, device=prompt.device).view(-1, 1, 1).unbind()
    kept = StaticCache(config=config, max_cache_len=size.prompt + size.new)  # one for all turns, because a recorded step keeps its address

    @torch.inference_mode()
    def once(cache: object, one: Callable[..., object]) -> Iterator[object]:
        out: object = model(prompt, past_key_values=cache, use_cache=True, logits_to_keep=1)
        for at in range(size.new):
            ids = out.logits[:, -1:].argmax(-1)  # type: ignore[attr-defined]
            yield ids.tolist()
            if at < size.new - 1:
                out = one(ids, past_key_values=cache, use_cache=True, position_ids=places[at])

    count = sum(parameter.numel() for parameter in model.parameters())
    static = "StaticCache, compiled" if session.device == "cuda" else "StaticCache"
    rows = [{"name": RIVAL, "body": body, "parameters": count} for body in ("DynamicCache", static)]

    @torch.inference_mode()  # the cache is filled in this mode, and may only be emptied in it
    def static_cache() -> StaticCache:
        kept.reset()
        return kept

    return rows, [lambda: once(DynamicCache(config=config), model), lambda: once(static_cache(), step)]
