"""HyperMLP and HyperGLU on a GPU: first the kernels' numbers against float64, then their time against attention.

    PYTHONPATH=src python bench/hyper_mlp_gpu.py [--out FOLDER] [--sweep] [--lengths 512 2048 8192 32768]

Times are medians of CUDA-graph replays with a cold L2, forward and backward with every gradient, for 65,536 tokens of
width 512 in bf16, 2 heads, rank 16. Attention and the layers include their projections. Kernels are compiled, and
checks run, by several processes at once. Nothing is timed when a check fails. --sweep: also each kernel with other warps
and stages, and other amounts of scratch memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import tokmix
from tokmix.ops.dispatch import implementation
from tokmix.ops.hyper_mlp import choice, launch, pull, reference
from tokmix.ops.hyper_mlp.reference import Bank

TOKENS, D, HEADS, RANK = 65_536, 512, 2, 16
Tensors = dict[str, Tensor]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# B, H, T, e, f, rank, hyperglu, lag layout, first bank, second bank, size of the banks, dtype
CHECKS: list[tuple[Any, ...]] = [
    (2, 2, 700, 64, 256, 16, False, True, True, True, 0.02, "bf16"),
    (2, 2, 333, 64, 256, 16, False, True, True, True, 0.5, "bf16"),
    (2, 2, 700, 32, 256, 16, True, True, True, True, 0.02, "bf16"),
    (2, 2, 333, 32, 256, 16, True, True, True, True, 0.5, "bf16"),
    (2, 2, 333, 64, 256, 16, False, False, True, True, 0.1, "bf16"),
    (2, 2, 333, 64, 128, 16, False, True, False, True, 0.1, "bf16"),
    (2, 2, 333, 64, 128, 16, True, True, True, False, 0.1, "bf16"),
    (1, 2, 200, 64, 256, 16, False, True, True, True, 0.2, "fp16"),
    (1, 2, 200, 32, 256, 16, True, True, True, True, 0.2, "fp16"),
    (2, 2, 333, 64, 256, 16, False, True, True, True, 0.2, "fp32"),
    (2, 2, 200, 32, 64, 16, True, True, True, True, 0.2, "fp32"),
    (3, 1, 131, 20, 24, 5, False, True, True, True, 0.2, "fp32"),
    (3, 1, 131, 20, 24, 5, True, False, True, True, 0.2, "fp32"),
    (2, 1, 150, 128, 512, 64, False, True, True, True, 0.1, "bf16"),
    (4, 2, 1, 64, 256, 16, False, True, True, True, 0.2, "bf16"),
]
SWEEP = ((4, 2), (4, 3), (8, 2))  # warps, stages
KERNELS = {"SUMS": launch, "OUTPUT": launch} | dict.fromkeys(("WEIGHTS", "SCORES", "BACK", "BANKS", "DEEP_BANKS", "KEYS"), pull)


# ---------------------------------------------------------------- what is measured
def draw(B: int, H: int, T: int, e: int, f: int, r: int, glu: bool, first: bool, second: bool, size: float, dtype: torch.dtype) -> Tensors:
    normal = lambda *shape: torch.randn(*shape, device="cuda")
    given = {name: normal(B, T, H * (1 + glu), e).transpose(1, 2) for name in ("q", "k")}  # as heads lie in a layer
    given["v"] = normal(B, T, H, f).transpose(1, 2)
    for name, heads, there in (("1", H * (1 + glu), first), ("2", H, second)):
        if there:
            given |= {"down" + name: size * normal(heads, T, r), "up" + name: size * normal(heads, r, T)}
            given |= {"diagonal" + name: size * normal(heads, T), "control" + name: normal(B, T, heads, r).sigmoid().transpose(1, 2)}
    return {name: x.to(dtype) for name, x in given.items()}


def mixed(t: Tensors, lag: bool = True, body: Callable[..., Tensor] = choice.hyper_mlp) -> Tensor:
    names = ("down", "up", "diagonal", "control")
    banks = [Bank(*(t[part + name] for part in names)) if "down" + name in t else None for name in ("1", "2")]
    return body(t["q"], t["k"], t["v"], None, *banks, lag, t["q"].shape[2])


def attention(heads: int) -> Callable[[Tensors], Tensor]:
    def body(t: Tensors) -> Tensor:
        B, N, d = t["x"].shape
        q, k, v = (torch.matmul(t["x"], t[w]).view(B, N, heads, -1).transpose(1, 2) for w in ("Wq", "Wk", "Wv"))
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).reshape(B, N, d) @ t["Wo"]

    return body


def layer(name: str, N: int) -> Callable[[Tensors], Tensor]:
    mixer = tokmix.create(name, D, causal=True, max_len=N).to("cuda", torch.bfloat16)

    def body(t: Tensors) -> Tensor:
        parameters = {key: x for key, x in t.items() if key != "x"}
        return torch.func.functional_call(mixer, parameters, (t["x"],))

    body.weights = dict(mixer.named_parameters())  # type: ignore[attr-defined]
    return body


# ---------------------------------------------------------------- numbers
def gradients(body: Callable[[Tensors], Tensor], given: Tensors, dy: Tensor, wide: bool) -> Tensors:
    leaves = {name: (x.double() if wide else x).detach().requires_grad_() for name, x in given.items()}
    y = body(leaves)
    grads = torch.autograd.grad(y, list(leaves.values()), dy.to(y.dtype))
    return {"y": y.detach()} | dict(zip(leaves, grads, strict=True))


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm().clamp(min=1e-300))


def checked(case: tuple[Any, ...]) -> dict[str, Any]:
    """Twice torch's own error plus eps at most, both against float64, for the output and every gradient."""
    torch.manual_seed(hash(case) % 1000)
    *shape, glu, lag, first, second, size, kind = case
    dtype = DTYPES[kind]
    given = draw(*shape, glu, first, second, size, dtype)
    dy = torch.randn_like(given["v"])
    defined = lambda t: mixed(t, lag, reference.hyper_mlp)
    exact = gradients(defined, given, dy, wide=True)
    plain = {name: error(x, exact[name]) for name, x in gradients(defined, given, dy, wide=False).items()}
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN
    with implementation("triton"):
        ours = gradients(lambda t: mixed(t, lag), given, dy, wide=False)
        again = gradients(lambda t: mixed(t, lag), given, dy, wide=False)
    errors, eps = {name: error(x, exact[name]) for name, x in ours.items()}, torch.finfo(dtype).eps
    over = [name for name in errors if not errors[name] <= 2 * plain[name] + eps]
    over += [f"{name} differs in a second run" for name in ours if not torch.equal(ours[name], again[name])]
    return {"case": case, "over": over, "errors": errors, "torch": plain}


def tried(settings: tuple[int, int]) -> dict[str, Any]:
    """Checks a setting, and leaves its kernels in Triton's cache."""
    for name, module in KERNELS.items():
        setattr(module, name, settings)
    return checked(CHECKS[0]) | {"case": settings}


def attempt(job: Callable[..., Any], *given: Any) -> Any:
    try:
        return job(*given)
    except Exception as problem:
        return {"case": given[0], "over": [f"{type(problem).__name__}: {str(problem)[-300:]}"], "errors": {}, "torch": {}}


def numbers(sweep: bool) -> list[dict[str, Any]]:
    # One process a case: a broken kernel takes its process along.
    with ProcessPoolExecutor(14, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        jobs = [*((tried, settings) for settings in (SWEEP if sweep else ())), *((checked, case) for case in CHECKS)]
        rows = list(pool.map(attempt, *zip(*jobs, strict=True)))
    for row in rows:
        errors, plain = row["errors"], row["torch"]
        worst = max(errors, key=lambda name, e=errors, p=plain: e[name] / (2 * p[name] + 1e-30), default="")
        more = f"; {worst} {errors[worst]:.1e}, torch {plain[worst]:.1e}; y {errors['y']:.1e}" if worst else ""
        print(f"{row['case']!s:80s} {'FAIL ' + str(row['over']) if row['over'] else 'ok'}{more}", flush=True)
        if row["over"]:
            print("   ", {name: f"{x:.1e} ({row['torch'][name]:.1e})" for name, x in row["errors"].items()})
    return rows


# ---------------------------------------------------------------- time
def once(body: Callable[[Tensors], Tensor], given: Tensors) -> Callable[[], None]:
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    dy = torch.randn_like(body(leaves))

    def run() -> None:
        torch.autograd.grad(body(leaves), list(leaves.values()), dy)

    return run


class Clock:
    """Milliseconds of forward + backward, and peak MiB beyond what is given."""

    def __init__(self) -> None:
        self.flush = torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda")

    def __call__(self, run: Callable[[], None], replays: int = 5) -> tuple[float, float]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
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

    def _timed(self, run: Callable[[], None]) -> float:
        self.flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)


def profiled(run: Callable[[], None]) -> dict[str, float]:
    """Microseconds of each kernel."""
    run()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
        torch.cuda.synchronize()
    return {row.key[:40]: round(row.device_time_total) for row in found.key_averages() if row.device_time_total > 5}


def op_case(N: int, glu: bool) -> Tensors:
    return draw(TOKENS // N, HEADS, N, D // 4 // HEADS // (1 + glu), D // HEADS, RANK, glu, True, True, 0.02, torch.bfloat16)


def swept(sound: list[Any]) -> dict[str, Any]:
    found = {}
    given = op_case(2048, False)
    usual = {name: getattr(module, name) for name, module in KERNELS.items()}
    for settings in sound:
        try:
            for name, module in KERNELS.items():
                setattr(module, name, settings)
            found[str(settings)] = profiled(once(mixed, given))
        except Exception as problem:
            found[str(settings)] = {str(problem)[:80]: 0.0}
        print(
            settings, {name: us for name, us in found[str(settings)].items() if name in ("forward", "queries", "keys", "banks")}, flush=True
        )
    for name, settings in usual.items():
        setattr(launch, name, settings)
    return found


def times(lengths: list[int]) -> list[dict[str, Any]]:
    clock, rows = Clock(), []
    for N in lengths:
        weights = {name: torch.randn(D, D, device="cuda", dtype=torch.bfloat16) * D**-0.5 for name in ("Wq", "Wk", "Wv", "Wo")}
        x = torch.randn(TOKENS // N, N, D, device="cuda", dtype=torch.bfloat16)
        jobs: list[tuple[str, Callable[[Tensors], Tensor], Tensors]] = [("attention, head 128", attention(4), weights | {"x": x})]
        for name in ("hypermlp", "hyperglu"):
            body = layer(name, N)
            jobs.append((name, body, {**body.weights, "x": x}))  # type: ignore[attr-defined]
            jobs.append((name + ", op alone", mixed, op_case(N, name == "hyperglu")))
        base = 0.0
        for name, body, given in jobs:
            try:
                ms, peak = clock(once(body, given))
            except torch.OutOfMemoryError:
                print(f"{name} N={N}: out of memory", flush=True)
                continue
            base = base or ms
            rows.append({"body": name, "N": N, "ms": ms, "peak_mib": peak, "of_attention": ms / base})
            print(f"{name:24s} N={N:6d} {ms:9.2f} ms {peak:8.0f} MiB  {ms / base:5.2f} of attention", flush=True)
            torch.cuda.empty_cache()
        print("   ", profiled(once(mixed, op_case(N, False))), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for hyper_mlp_gpu.json")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--anyway", action="store_true", help="time even where a check fails")
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 2048, 8192, 32_768])
    given = parser.parse_args()
    started = time.time()
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    machine |= {"cudnn": torch.backends.cudnn.version(), "python": platform.python_version(), "tokens": TOKENS, "width": D, "heads": HEADS}
    print(json.dumps(machine), flush=True)
    checks = numbers(given.sweep)
    sound = [row["case"] for row in checks if not row["over"]]
    passes = sum(case in CHECKS for case in sound)
    print(f"{passes} of {len(CHECKS)} checks pass; {time.time() - started:.0f} s", flush=True)
    found: dict[str, Any] = {"machine": machine, "checks": checks}
    if passes == len(CHECKS) or given.anyway:
        torch.manual_seed(0)
        found["times"] = times(given.lengths)
        found["sweep"] = swept([case for case in sound if case in SWEEP]) if given.sweep else {}
    print(f"took {time.time() - started:.0f} s")
    Path(given.out, "hyper_mlp_gpu.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
