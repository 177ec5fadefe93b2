"""Generation on top of Model.step: greedy or sampled, prompts of unequal length in one batch.

Each prompt has its own random stream, seeded by (seed, index of the prompt). So the other prompts of a batch do not
change its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Real
from operator import index
from typing import Literal, overload

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tokmix.core import checks, speculative
from tokmix.core.decoding import Decoder
from tokmix.core.mixer import State
from tokmix.core.model import Model
from tokmix.core.segments import pad

AHEAD = 8  # tokens that a GPU generates before the host reads them


@overload
def generate(
    model: Model, prompts: Sequence[Sequence[int]], max_new: int = ..., min_new: int = ..., temperature: float = ...,
    top_k: int | None = ..., top_p: float | None = ..., stop: Sequence[int] = ..., seed: int | None = ..., stream: Literal[False] = ...,
    draft: Model | None = ..., draft_tokens: int = ...,
) -> list[list[int]]: ...  # fmt: skip
@overload
def generate(
    model: Model, prompts: Sequence[Sequence[int]], max_new: int = ..., min_new: int = ..., temperature: float = ...,
    top_k: int | None = ..., top_p: float | None = ..., stop: Sequence[int] = ..., seed: int | None = ..., *, stream: Literal[True],
    draft: Model | None = ..., draft_tokens: int = ...,
) -> Iterator[tuple[int, int]]: ...  # fmt: skip
def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    max_new: int = 20,
    min_new: int = 0,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: Sequence[int] = (),
    seed: int | None = None,
    stream: bool = False,
    draft: Model | None = None,
    draft_tokens: int = 4,
) -> list[list[int]] | Iterator[tuple[int, int]]:
    """New ids for each prompt; a stop token ends a row and is its last id.

    temperature  0 takes the likeliest token (greedy); a number above samples from the softmax of logits / temperature
    top_k        sample from the k likeliest tokens
    top_p        sample from the smallest set of likeliest tokens whose probabilities reach p
    stop         ids that end a row, but not before min_new tokens
    seed         of the sampling; None draws one
    stream       return an iterator of (row, id), which yields each token when it is generated
    draft        a smaller model of the same vocabulary. It proposes draft_tokens tokens, which the model checks in one pass. The ids
                 are those of greedy decoding without a draft.
    """
    try:
        rows = [[index(token) for token in prompt] for prompt in prompts]
    except TypeError:
        raise ValueError(f"prompts={prompts!r} should be lists of whole numbers, such as [[5, 8, 2], [7]]") from None
    try:
        stops = tuple(index(token) for token in stop)
    except TypeError:
        raise ValueError(f"stop={stop!r} should be a list of whole numbers, such as [2]") from None
    _check(model, rows, max_new, min_new, temperature, top_k, top_p, stops)
    seed = _seed(seed)
    if draft is not None:
        checks.at_least("draft_tokens", draft_tokens, 1)
        speculative.check(model, draft, rows, max_new, temperature)
    choice = Choice(len(rows), max_new, min_new, temperature, top_k, top_p, stops, seed, model.device)
    if draft is None or not rows or max_new == 0:
        tokens = _tokens(model, rows, max_new, stops, choice)
    else:
        tokens = speculative.Speculation(model, draft, max_new, min_new, stops, draft_tokens).tokens(rows)
    if stream:
        return tokens
    new: list[list[int]] = [[] for _ in rows]
    for row, token in tokens:
        new[row].append(token)
    return new


def _seed(seed: int | None) -> int:
    if seed is None:
        return int(torch.randint(2**31, ()))
    try:
        return index(seed)
    except TypeError:
        raise ValueError(f"seed={seed!r} should be a whole number, or None to draw one") from None


def _check(
    model: Model, prompts: list[list[int]], max_new: int, min_new: int, temperature: float, top_k: int | None, top_p: float | None,
    stop: Sequence[int],
) -> None:  # fmt: skip
    config = model.config
    if config.head != "lm":
        raise ValueError(f"generate needs a model with head='lm', not {config.head!r}")
    checks.at_least("max_new", max_new, 0)
    checks.at_least("min_new", min_new, 0)
    if min_new > max_new:
        raise ValueError(f"min_new={min_new} is more than max_new={max_new}")
    if not isinstance(temperature, Real) or not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature!r} should be 0 (greedy) or a finite number above it")
    if top_k is not None:
        checks.at_least("top_k", top_k, 1)
    if top_p is not None and (not isinstance(top_p, Real) or not 0 < top_p <= 1):
        raise ValueError(f"top_p={top_p!r} should be above 0 and at most 1")
    for row, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {row} is empty; generation needs at least one token")
        if model.limit is not None and len(prompt) + max_new > model.limit:
            raise ValueError(
                f"prompt {row} of {len(prompt)} tokens and max_new={max_new} are more than this model takes: max_len={model.limit}"
            )
    for token in {token for prompt in prompts for token in prompt} | set(stop):
        if not 0 <= token < config.vocab:
            raise ValueError(f"token id {token} is not in the vocabulary of {config.vocab}")
    if min_new and len(set(stop)) == config.vocab:
        raise ValueError(f"stop has all {config.vocab} tokens of the vocabulary; with min_new={min_new} none of them can come first")


def _tokens(model: Model, prompts: list[list[int]], max_new: int, stop: tuple[int, ...], choice: Choice) -> Iterator[tuple[int, int]]:
    """(row, id) for each new token, row by row within a step. Finished rows stay in the batch, unread, until half of all rows are
    finished, and are then removed: while a batch keeps its shape, the host has no work."""
    if not prompts or max_new == 0:
        return
    device, lengths = model.device, [len(prompt) for prompt in prompts]
    decoder = Decoder(model, max(lengths) + max_new, choice, tokens=max_new - 1)
    position = lengths[0] if len(set(lengths)) == 1 else None  # of all rows
    rows = alive = list(range(len(prompts)))
    unread: list[Tensor] = []
    ahead = AHEAD if device.type == "cuda" else 1  # a GPU does not wait until the host has read a token
    was_training = model.training
    model.eval()
    try:
        chosen, state = _prefill(decoder, prompts, device, choice)
        for done in range(1, max_new + 1):
            unread.append(chosen)
            if done == max_new or len(unread) == ahead or done == 1:
                for ids in torch.stack(unread).tolist():
                    id_of = dict(zip(rows, ids, strict=True))
                    yield from ((row, id_of[row]) for row in alive)
                    alive = [row for row in alive if id_of[row] not in stop]
                unread.clear()
                if not alive or done == max_new:
                    return
                if 2 * len(alive) <= len(rows):
                    kept = torch.tensor([rows.index(row) for row in alive], device=device)
                    chosen, state = chosen[kept], tree_map(lambda leaf, kept=kept: leaf.index_select(0, kept), state)
                    choice.keep(kept)
                    rows = alive
            with torch.inference_mode():
                chosen, state = decoder.next(chosen[:, None], state, position=None if position is None else position + done - 1)
    finally:
        model.train(was_training)


def _prefill(decoder: Decoder, prompts: list[list[int]], device: torch.device, choice: Choice) -> tuple[Tensor, State]:
    """The first new ids [B], and the state after the prompts."""
    ids, segments = pad(prompts, device)
    with torch.inference_mode():
        state = decoder.model.init_state(len(prompts))
        logits, state = decoder.read(ids, state, segments, position=0 if segments is None else None)
        return choice(logits[:, -1]), state


class Choice:
    """Chooses the next ids from logits, on their device and without waiting for the host. The random numbers of each row are drawn
    beforehand; `done` counts the calls."""

    def __init__(
        self, rows: int, max_new: int, min_new: int, temperature: float, top_k: int | None, top_p: float | None, stop: Sequence[int],
        seed: int, device: torch.device,
    ):  # fmt: skip
        self.temperature, self.top_k, self.top_p, self.min_new = temperature, top_k, top_p, min_new if stop else 0
        self.done = torch.zeros(1, dtype=torch.long, device=device)
        self.stop = torch.tensor(list(stop), dtype=torch.long, device=device)
        self.uniform: Tensor | None = None  # [max_new, rows]
        if temperature > 0:
            streams = [torch.Generator().manual_seed((seed * 1_000_003 + row) % 2**63) for row in range(rows)]
            drawn = [torch.rand(max_new, generator=stream, dtype=torch.double) for stream in streams]
            self.uniform = torch.stack(drawn, dim=1).to(device) if drawn else None

    def buffers(self) -> list[Tensor]:
        return [self.done]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows of the batch."""
        if self.uniform is not None:
            self.uniform = self.uniform[:, rows]

    def __call__(self, logits: Tensor) -> Tensor:
        """logits [B, vocab] -> [B] ids. Sampling sorts the tokens from the likeliest down and inverts their cumulative
        distribution at one uniform number for each row."""
        if self.min_new:
            without_stop = logits.index_fill(1, self.stop, -torch.inf)
            logits = torch.where(self.done < self.min_new, without_stop, logits)
        if self.uniform is None:
            self.done += 1
            return logits.argmax(-1)
        uniform = self.uniform[self.done].squeeze(0)  # [B]
        self.done += 1
        logits, ids = logits.sort(dim=-1, descending=True, stable=True)
        if self.top_k is not None:
            logits, ids = logits[:, : self.top_k], ids[:, : self.top_k]
        # Relative to the likeliest and in float64: the smallest temperatures must not give infinity or 0 / 0.
        probabilities = ((logits.double() - logits[:, :1].double()) / self.temperature).softmax(-1)
        if self.top_p is not None:
            before = probabilities.cumsum(-1) - probabilities
            probabilities = torch.where(before < self.top_p, probabilities, 0)
        cumulative = probabilities.cumsum(-1)
        target = uniform[:, None] * cumulative[:, -1:]
        rank = torch.searchsorted(cumulative, target, right=True)
        last = (probabilities > 0).sum(-1, keepdim=True) - 1  # rounding must not pick a token of probability zero
        return ids.gather(-1, torch.minimum(rank, last)).squeeze(-1)
