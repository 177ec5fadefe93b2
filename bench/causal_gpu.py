"""Causal HyperMixing on a GPU: first the kernels' numbers against float64, then their time against the reference and attention.

    PYTHONPATH=src python bench/causal_gpu.py [--out FOLDER] [--skip-reference]

Times are medians of CUDA-graph replays with a cold L2, forward and backward with every gradient, for 65,536 tokens of
width 512 in bf16. Attention includes its projections, at its fastest setting. The reference is timed as it runs, once
warm. Nothing is timed when a check in bf16 fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tokmix.ops.causal_hyper_mix import choice, reference
from tokmix.ops.causal_hyper_mix.reference import Carry
from tokmix.ops.dispatch import implementation

TOKENS, D, HEADS = 65_536, 512, 8
LENGTHS = (512, 2048, 8192, 32_768)
Tensors = dict[str, Tensor]
Body = Callable[[Tensors], list[Tensor]]


# ---------------------------------------------------------------- what is measured
def draw(B: int, H: int, L: int, k: int, e: int, dtype: torch.dtype, decay: bool = True) -> Tensors:
    normal = lambda *shape: torch.randn(*shape, device="cuda")
    given = {"w_in": normal(B, H, L, k).to(dtype), "w_out": normal(B, H, L, k).to(dtype)}
    given["values"] = normal(B, L, H, e).to(dtype).transpose(1, 2)  # as heads lie in a layer
    if decay:
        span = torch.logspace(3, 9, H, base=2.0, device="cuda")  # as the layer starts: memories of 8 to 512 tokens
        given["log_decay"] = F.logsigmoid(torch.log(span - 1)[:, None] + normal(B, H, L))
    return given | {"hidden": normal(B, H, k, e), "count": 5 * torch.rand(B, H, device="cuda")}


def scan(t: Tensors, real: Tensor | None = None, body: Callable[..., Any] = choice.causal_hyper_mix) -> list[Tensor]:
    y, counts, carry = body(t["w_in"], t["w_out"], t["values"], t.get("log_decay"), real, None, Carry(t["hidden"], t["count"]))
    return [y, counts, *carry]


def attention(heads: int) -> Body:
    def body(t: Tensors) -> list[Tensor]:
        B, N, d = t["x"].shape
        q, k, v = (torch.matmul(t["x"], t[w]).view(B, N, heads, -1).transpose(1, 2) for w in ("Wq", "Wk", "Wv"))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return [y.transpose(1, 2).reshape(B, N, d) @ t["Wo"]]

    return body


# ---------------------------------------------------------------- numbers
def gradients(body: Body, given: Tensors, dys: list[Tensor], wide: bool) -> Tensors:
    leaves = {name: (x.double() if wide else x).detach().requires_grad_() for name, x in given.items()}
    found = body(leaves)
    grads = torch.autograd.grad(found, list(leaves.values()), [dy.to(y.dtype) for dy, y in zip(dys, found, strict=True)])
    return dict(zip(("y", "counts", "last", "last count"), (x.detach() for x in found), strict=True)) | {
        f"d {name}": grad for name, grad in zip(leaves, grads, strict=True)
    }


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def checked(shape: tuple[int, ...], dtype: torch.dtype, decay: bool, padded: bool) -> dict[str, Any]:
    """Twice torch's own error plus eps at most, both against float64, for every output and gradient."""
    given = draw(*shape, dtype, decay)  # type: ignore[arg-type]
    real = torch.rand(shape[0], shape[2], device="cuda") > 0.2 if padded else None
    dys = [torch.randn_like(x) for x in scan(given, real)]
    defined = lambda t: scan(t, real, reference.causal_hyper_mix)
    exact = gradients(defined, given, dys, wide=True)
    plain = {name: error(x, exact[name]) for name, x in gradients(defined, given, dys, wide=False).items()}
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN
    with implementation("triton"):
        errors = {name: error(x, exact[name]) for name, x in gradients(lambda t: scan(t, real), given, dys, wide=False).items()}
    torch.use_deterministic_algorithms(False)
    eps = torch.finfo(dtype).eps
    over = [name for name in errors if not errors[name] <= 2 * plain[name] + eps]
    worst = max(errors, key=lambda name: errors[name] / (2 * plain[name] + eps))
    row: dict[str, Any] = {"shape": shape, "dtype": str(dtype).removeprefix("torch."), "decay": decay, "padded": padded}
    row |= {"over": over, "errors": errors, "torch": plain}
    print(f"{shape!s:26s} {row['dtype']:9s} decay {decay!s:5s} padded {padded!s:5s} {'FAIL ' + str(over) if over else 'ok'}; "
          f"worst {worst}: {errors[worst]:.1e}, torch {plain[worst]:.1e}; y {errors['y']:.1e}", flush=True)  # fmt: skip
    return row


CHECKS = [
    ((2, 8, 1024, 64, 64), torch.bfloat16, True, False),
    ((2, 4, 333, 64, 64), torch.float32, True, True),
    ((2, 4, 333, 128, 64), torch.bfloat16, False, True),
    ((3, 2, 130, 20, 24), torch.float32, True, True),
    ((1, 2, 200, 64, 128), torch.float16, True, False),
    ((2, 4, 1, 64, 64), torch.bfloat16, True, False),
]


def numbers() -> list[dict[str, Any]]:
    return [checked(*check) for check in CHECKS]


# ---------------------------------------------------------------- time
def once(body: Body, given: Tensors) -> Callable[[], None]:
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    dy = torch.randn_like(body(leaves)[0])
    wanted = [x for name, x in leaves.items() if name not in ("hidden", "count")]  # a sequence starts from nothing

    def run() -> None:
        torch.autograd.grad(body(leaves)[0], wanted, dy)

    return run


class Clock:
    """Milliseconds of forward + backward, and peak MiB beyond what is given."""

    def __init__(self) -> None:
        self.flush = torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda")

    def replayed(self, run: Callable[[], None], replays: int = 9) -> tuple[float, float]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()
            run()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return statistics.median(self._timed(graph.replay) for _ in range(replays)), peak

    def plain(self, run: Callable[[], None]) -> tuple[float, float]:
        run()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        return self._timed(run), (torch.cuda.max_memory_allocated() - before) / 2**20

    def _timed(self, run: Callable[[], None]) -> float:
        self.flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)


def times(with_reference: bool) -> list[dict[str, Any]]:
    clock, rows = Clock(), []

    def add(name: str, k: int | None, L: int, tokens: int, timed: Callable[..., tuple[float, float]], body: Body, given: Tensors) -> None:
        try:
            ms, peak = timed(once(body, given))
        except torch.OutOfMemoryError:
            print(f"{name}, L={L}: out of memory at {tokens} tokens", flush=True)
            return
        finally:
            torch.cuda.empty_cache()
        rows.append({"body": name, "k": k, "L": L, "tokens": tokens, "ms": ms, "peak_mib": peak})
        print(f"{name:24s} k={k!s:5s} L={L:6d} {ms:9.2f} ms {peak:7.0f} MiB{'' if tokens == TOKENS else f' ({tokens} tokens)'}", flush=True)

    for L in LENGTHS:
        B = TOKENS // L
        weights = {name: torch.randn(D, D, device="cuda", dtype=torch.bfloat16) * D**-0.5 for name in ("Wq", "Wk", "Wv", "Wo")}
        given = weights | {"x": torch.randn(B, L, D, device="cuda", dtype=torch.bfloat16)}
        for heads in (4, 8):
            add(f"attention, head {D // heads}", None, L, TOKENS, clock.replayed, attention(heads), given)
        for k in (64, 128):
            given = draw(B, HEADS, L, k, D // HEADS, torch.bfloat16)
            add("kernel", k, L, TOKENS, clock.replayed, scan, given)
            if k == 64:
                plain = {name: x for name, x in given.items() if name != "log_decay"}
                add("kernel, no decay", k, L, TOKENS, clock.replayed, scan, plain)
            if with_reference and k == 64:
                add("reference", k, L, TOKENS, clock.plain, lambda t: scan(t, None, reference.causal_hyper_mix), given)
    return rows


def profile() -> dict[str, float]:
    """Microseconds of each kernel at L = 2048, k = 64."""
    run = once(scan, draw(TOKENS // 2048, HEADS, 2048, 64, D // HEADS, torch.bfloat16))
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return {row.key[:60]: row.device_time_total for row in found.key_averages() if row.device_time_total > 5}


def table(rows: list[dict[str, Any]]) -> None:
    print(f"\n{'':18s}" + "".join(f"{L:>10d}" for L in LENGTHS) + "   ms, forward + backward")
    for body, k in dict.fromkeys((row["body"], row["k"]) for row in rows):
        found = {row["L"]: row["ms"] for row in rows if (row["body"], row["k"]) == (body, k)}
        print(f"{body + (f' {k}' if k else ''):18s}" + "".join(f"{found[L]:10.2f}" if L in found else f"{'-':>10s}" for L in LENGTHS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for causal_gpu.json")
    parser.add_argument("--skip-reference", action="store_true", help="do not time plain torch, which takes a second a pass")
    given = parser.parse_args()
    started = time.time()
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    machine |= {"cudnn": torch.backends.cudnn.version(), "python": platform.python_version(), "tokens": TOKENS, "width": D, "heads": HEADS}
    print(json.dumps(machine), flush=True)
    torch.manual_seed(0)
    checks = numbers()
    passes = all(not row["over"] for row in checks if row["dtype"] == "bfloat16")
    print(f"checks took {time.time() - started:.0f} s", flush=True)
    found: dict[str, Any] = {"machine": machine, "checks": checks}
    if passes:
        found["times"], found["kernels"] = times(not given.skip_reference), profile()
        table(found["times"])
        print(json.dumps(found["kernels"]))
    print(f"took {time.time() - started:.0f} s; {sum(not row['over'] for row in checks)} of {len(checks)} checks pass")
    Path(given.out, "causal_gpu.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
