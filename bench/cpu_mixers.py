"""One CPU thread, float32, forward and backward with every gradient: how many times faster than attention a mixer is.

    PYTHONPATH=src OMP_NUM_THREADS=1 python bench/cpu_mixers.py [--length 4096] [--width 512] [--rows 1]

Attention is torch's SDPA with heads of 64 and its projections. Times are the least of several runs, in CPU time of this
process, so that others on the machine matter less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import tokmix
from bench.speed import machine


class Attention(nn.Module):
    def __init__(self, width: int, causal: bool):
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(2, (-1, 64)).transpose(1, 2) for layer in list(self.projections)[:3])
        return self.projections[3](F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Normed(nn.Module):
    def __init__(self, mixer: nn.Module, width: int):
        super().__init__()
        self.mixer, self.norm = mixer, nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mixer(self.norm(x))


def seconds(body: Callable[[Tensor], Tensor], x: Tensor, weights: Iterable[Tensor], runs: int) -> float:
    weights, best = list(weights), float("inf")
    for _ in range(runs):
        began = time.process_time()
        y = body(x)
        torch.autograd.grad(y, [x, *weights], torch.ones_like(y))
        best = min(best, time.process_time() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    code = machine.code()
    print(f"{machine.in_words()}; one thread; commit {code['commit']}, changed: {code['changed']}; {vars(given)}", flush=True)
    x = torch.randn(given.rows, given.length, given.width, requires_grad=True)
    made: dict[str, tuple[bool, dict[str, Any]]] = {
        "hypermixing, heads of 64, tied": (False, {"heads": given.width // 64, "hidden": given.width}),
        "hypermixing, heads of 64, untied": (False, {"heads": given.width // 64, "hidden": given.width, "tied": False}),
        "hypermixing, one head, tied": (False, {"hidden": given.width}),
        "hypermixing, one head, untied": (False, {"hidden": given.width, "tied": False}),
        "hsm, LayerNorm + vector + residual": (True, {"layer": 4}),
    }
    attention = {}
    for causal in (False, True):
        module = Attention(given.width, causal)
        attention[causal] = seconds(module, x, module.parameters(), 2)
        print(f"{'attention, ' + ('causal' if causal else 'full'):36s} {attention[causal] * 1e3:8.1f} ms", flush=True)
    for name, (causal, options) in made.items():
        mixer = tokmix.create(name.split(",")[0], given.width, causal=causal, max_len=given.length, **options)
        module = Normed(mixer, given.width) if causal else mixer
        taken = seconds(module, x, module.parameters(), 10 if causal else 4)
        print(f"{name:36s} {taken * 1e3:8.1f} ms, {attention[causal] / taken:5.1f} times faster", flush=True)


if __name__ == "__main__":
    main()
