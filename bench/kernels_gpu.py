"""The kernels on a GPU: first their numbers against float64, then their time against plain torch and attention.

    PYTHONPATH=src python bench/kernels_gpu.py [--out FOLDER] [--skip-compiled]

A kernel whose check fails is not timed. Times are medians of CUDA-graph replays with a cold L2, forward and backward
with every gradient, for 65,536 tokens in bf16; wall is the time of the same in eager Python, one call after the other.
Attention includes its projections, at its fastest setting. Last, a chain of decoding steps, a layer each.
"""

from __future__ import annotations

import argparse
import itertools
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

from tokmix.mixer import states_given_away
from tokmix.ops.dispatch import implementation
from tokmix.ops.hyper_mix import choice as hyper
from tokmix.ops.hyper_mix import reassociated
from tokmix.ops.hyper_mix import reference as hyper_reference
from tokmix.ops.hyper_mix.reference import Net
from tokmix.ops.shift_mix import choice as shift
from tokmix.places import chunks_of, places_of
from tokmix.segments import Segments

TOKENS, D, HEADS = 65_536, 512, 8
LENGTHS = (512, 2048, 8192, 32_768)
Tensors = dict[str, Tensor]
Body = Callable[[Tensors], Tensor]


# ---------------------------------------------------------------- what is measured
def draw(seed: int, dtype: torch.dtype, **shapes: tuple[int, ...]) -> Tensors:
    torch.manual_seed(seed)
    scale = lambda s: s[-2] ** -0.5 if len(s) > 1 and s[-2] > 1 else 1.0
    return {name: (torch.randn(*s, device="cuda") * (1.0 if name == "x" else scale(s))).to(dtype) for name, s in shapes.items()}


def nets(t: Tensors) -> tuple[Net, Net | None]:
    first = Net(t["U"], t["b"], t["V"], t["c"])
    return first, Net(t["U2"], t["b2"], t["V2"], t["c2"]) if "U2" in t else None


def net_shapes(heads: int, hidden: int, tied: bool, width: int = D) -> dict[str, tuple[int, ...]]:
    e, k = width // heads, hidden // heads
    one = {"U": (heads, e, e), "b": (heads, e), "V": (heads, e, k), "c": (heads, k)}
    return one if tied else one | {name + "2": shape for name, shape in one.items()}


def hyper_heads(t: Tensors, chunks: Any = None) -> Tensor:
    return hyper.mix(t["x"], *nets(t), norm=hyper.Norm(t["gain"], t["bias"], 1e-5), chunks=chunks)


def hyper_textbook(t: Tensors) -> Tensor:
    first, second = nets(t)
    y = hyper_reference.hyper_mix(t["x"], t["x"], t["x"], first, second or first)
    return F.layer_norm(y, y.shape[-1:], t["gain"], t["bias"], 1e-5)


def hyper_reassociated(t: Tensors) -> Tensor:
    first, second = nets(t)
    y = reassociated.hyper_mix(t["x"], t["x"], t["x"], first, second or first)
    return F.layer_norm(y, y.shape[-1:], t["gain"], t["bias"], 1e-5)


def hyper_text_packed(packed: Segments) -> Body:
    return lambda t: packed.unrows(hyper_textbook(t | {"x": packed.rows(t["x"])[0]}))


def matrix(t: Tensors, **where: Any) -> Tensor:
    return shift.matrix_shift_mix(t["x"], [t["A"], t["B"]], (16,), **where)


def vector(t: Tensors, **where: Any) -> Tensor:
    return shift.shift_mix(t["x"], [t["a"], t["b"]], (16,), **where)


def norm_vector(t: Tensors, **where: Any) -> Tensor:
    return shift.norm_shift_mix(t["x"], [t["a"], t["b"]], t["gain"], t["bias"], 1e-5, (16,), **where)


def gate(t: Tensors, **where: Any) -> Tensor:
    return shift.gate_shift_mix(t["x"], t["W"], t["c"], (16,), **where)


Shapes = dict[str, tuple[int, ...]]
VECTOR: Shapes = {"a": (1, D), "b": (1, D)}
NORM: Shapes = {"gain": (D,), "bias": (D,)}
GATE: Shapes = {"W": (1, D, D), "c": (1, D)}
MATRIX: Shapes = {"A": (1, D, D), "B": (1, D, D)}


def attention(heads: int, causal: bool, backend: SDPBackend) -> Body:
    def body(t: Tensors) -> Tensor:
        B, N, d = t["x"].shape
        q, k, v = (torch.matmul(t["x"], t[w]).view(B, N, heads, -1).transpose(1, 2) for w in ("Wq", "Wk", "Wv"))
        with sdpa_kernel(backend):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return y.transpose(1, 2).reshape(B, N, d) @ t["Wo"]

    return body


ATTENTION: Shapes = dict.fromkeys(("Wq", "Wk", "Wv", "Wo"), (D, D))


# ---------------------------------------------------------------- numbers
def gradients(body: Body, given: Tensors, dy: Tensor, dtype: torch.dtype) -> Tensors:
    leaves = {name: tensor.detach().to(dtype).requires_grad_() for name, tensor in given.items()}
    y = body(leaves)
    return {"y": y.detach(), **dict(zip(leaves, torch.autograd.grad(y, list(leaves.values()), dy.to(y.dtype)), strict=True))}


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


def checked(name: str, body: Body, plain: Body, given: Tensors, dtype: torch.dtype, mask: Tensor | None = None) -> dict[str, Any]:
    """Twice torch's own error plus eps at most, both against float64, for y and every gradient."""
    dy = torch.randn_like(given["x"])
    if mask is not None:
        dy = dy * mask[..., None]
    with implementation("reference"):
        exact = gradients(plain, given, dy, torch.float64)
        torch_errors = {key: error(value, exact[key]) for key, value in gradients(plain, given, dy, dtype).items()}
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN
    try:
        with implementation("triton"):
            errors = {key: error(value, exact[key]) for key, value in gradients(body, given, dy, dtype).items()}
        problem = ""
    except Exception as failure:  # a kernel that does not compile is a result, too
        errors, problem = {}, f"{type(failure).__name__}: {str(failure).splitlines()[0] if str(failure) else ''}"[:160]
    torch.use_deterministic_algorithms(False)
    eps = torch.finfo(dtype).eps
    over = [key for key in errors if not errors[key] <= 2 * torch_errors[key] + eps]
    row = {"op": name, "dtype": str(dtype).removeprefix("torch."), "passes": bool(errors) and not over}
    worst = max(errors, key=lambda key: errors[key] / (2 * torch_errors[key] + eps), default=None)
    found, plain_error = errors.get(worst or "", float("nan")), torch_errors.get(worst or "", float("nan"))
    row |= {"worst": worst, "error": found, "torch": plain_error, "over": over, "problem": problem}
    verdict = "ok  " if row["passes"] else f"FAIL {over} {problem}"
    print(f"{name:34s} {row['dtype']:9s} {verdict} worst {worst}: {found:.1e}, torch {plain_error:.1e}", flush=True)
    return row


def numbers() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    packed = Segments.from_lengths([[699, 1, 300], [1000], [33, 900]], 1000, device="cuda")
    places, chunks = places_of(packed), chunks_of(packed)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        given = lambda dtype=dtype, **shapes: draw(len(rows), dtype, x=(3, 1000, D), **shapes)
        add = lambda *row: rows.append(checked(*row))
        add("shift_mix", vector, vector, given(**VECTOR), dtype)
        add("norm_shift_mix", norm_vector, norm_vector, given(**VECTOR, **NORM), dtype)
        add("gate_shift_mix", gate, gate, given(**GATE), dtype)
        add("matrix_shift_mix", matrix, matrix, given(**MATRIX), dtype)
        add("matrix_shift_mix, packed", *[lambda t: matrix(t, places=places)] * 2, given(**MATRIX), dtype, packed.mask)
        for tied in (False, True):
            name = f"hyper_mix, one head, {'tied' if tied else 'untied'}"
            add(name, hyper_heads, hyper_textbook, given(**net_shapes(1, D, tied), **NORM), dtype)
        add("norm_shift_mix, packed", *[lambda t: norm_vector(t, places=places)] * 2, given(**VECTOR, **NORM), dtype, packed.mask)
        add("gate_shift_mix, packed", *[lambda t: gate(t, places=places)] * 2, given(**GATE), dtype, packed.mask)
        add(f"hyper_mix, {HEADS} heads, untied", hyper_heads, hyper_textbook, given(**net_shapes(HEADS, D, False), **NORM), dtype)
        if dtype == torch.float32:
            continue  # its products take a minute to compile, and heads of 128 the reference
        for heads in (HEADS, 16, 4):
            add(f"hyper_mix, {heads} heads, tied", hyper_heads, hyper_textbook, given(**net_shapes(heads, D, True), **NORM), dtype)
        for tied in (False, True):
            shapes = {**net_shapes(HEADS, D, tied), **NORM}
            name = f"hyper_mix, packed, {'tied' if tied else 'untied'}"
            add(name, lambda t: hyper_heads(t, chunks), hyper_text_packed(packed), given(**shapes), dtype, packed.mask)
    return rows


# ---------------------------------------------------------------- time
class Clock:
    """Median time of a CUDA graph's replays, the L2 emptied before each."""

    def __init__(self) -> None:
        self.flush = torch.empty(512 * 2**20, dtype=torch.uint8, device="cuda")

    def __call__(self, body: Body, given: Tensors, replays: int = 25) -> tuple[float, float, float]:
        """Microseconds of forward + backward, peak MiB beyond what is given, and microseconds in eager Python."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
        dy = torch.randn_like(given["x"])

        def once() -> None:
            y = body(leaves)
            torch.autograd.grad(y, list(leaves.values()), dy.to(y.dtype))

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                once()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            once()
            peak = (torch.cuda.max_memory_allocated() - before) / 2**20
            walls = []
            for _ in range(3):
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(10):
                    once()
                torch.cuda.synchronize()
                walls.append((time.perf_counter() - began) * 1e5)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            once()
        times = []
        for _ in range(replays):
            self.flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            times.append((start, end))
        torch.cuda.synchronize()
        del graph
        torch.cuda.empty_cache()
        return statistics.median(start.elapsed_time(end) for start, end in times) * 1e3, peak, min(walls)


def forced(name: str, body: Body) -> Body:
    def run(t: Tensors) -> Tensor:
        with implementation(name):
            return body(t)

    return run


def layers() -> dict[str, tuple[Shapes, dict[str, Body]]]:
    """Each layer's weights, and its bodies: ours first."""
    heads = lambda tied: {**net_shapes(HEADS, D, tied), **NORM}
    one = lambda tied, hidden=D: {**net_shapes(1, hidden, tied), **NORM}
    return {
        "HSM vector": (VECTOR, {"ours": vector, "eager": forced("reference", vector)}),
        "HSM LN + vector + residual": ({**VECTOR, **NORM}, {"ours": norm_vector, "eager": forced("reference", norm_vector)}),
        "HSM gate": (GATE, {"ours": gate, "eager": forced("reference", gate)}),
        "HSM matrix": (MATRIX, {"ours": matrix, "eager": forced("reference", matrix)}),
        "HyperMixing, heads of 64, untied": (heads(False), {"ours": hyper_heads, "eager": hyper_textbook}),
        "HyperMixing, heads of 64, tied": (heads(True), {"ours": hyper_heads, "eager": hyper_textbook}),
        "HyperMixing, one head, untied": (one(False), {"ours": hyper_heads, "eager": hyper_textbook}),
        "HyperMixing, one head, tied": (one(True), {"ours": hyper_heads, "eager": hyper_textbook}),
        "HyperMixing, one head, d'=4096": (one(False, 4096), {"ours": hyper_heads, "re-associated": hyper_reassociated}),
    }


def chain_us(length: int, width: int, batch: int, distance: int, normed: bool) -> float:
    """Microseconds of that many decoding steps, one on the result of the other, in a CUDA graph."""
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    rings, weights, x = [make(batch, distance, width) for _ in range(2)], [make(1, width) for _ in range(2)], make(batch, 1, width)
    position = [torch.zeros(batch, dtype=torch.long, device="cuda") for _ in range(length)]
    norm = (make(width), make(width), 1e-5) if normed else None

    def chain() -> None:
        y = x
        for i in range(length):
            y = shift.step(y, rings[i % 2], position[i], weights=weights, norm=norm)

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    events = []
    for _ in range(30):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) * 1e3


def decoding(layers: int = 24) -> list[dict[str, Any]]:
    """Microseconds a layer in a chain of decoding steps."""
    rows = []
    for batch, distance, normed in itertools.product((1, 32), (1, 1024, 32_768), (False, True)):
        case = (1024, batch, distance, normed)
        with torch.inference_mode(), states_given_away():
            us = (chain_us(layers, *case) - chain_us(2, *case)) / (layers - 2)
        rows.append({"width": 1024, "batch": batch, "shift": distance, "norm": normed, "us": us})
        print(f"decoding step, d=1024, batch {batch}, shift {distance}, norm {normed}: {us:.2f} us a layer", flush=True)
    return rows


def times(lengths: tuple[int, ...], compiled: bool, failed: set[str], save: Callable[[list[dict[str, Any]]], None]) -> list[dict[str, Any]]:
    clock, rows = Clock(), []

    def add(layer: str, body_name: str, N: int, body: Body, given: Tensors) -> None:
        try:
            us, peak, wall = clock(body, given)
        except Exception as failure:
            print(f"{layer}, {body_name}, N={N}: {type(failure).__name__}: {str(failure)[:120]}", flush=True)
            return
        rows.append({"layer": layer, "body": body_name, "N": N, "us": us, "peak_mib": peak, "wall_us": wall})
        save(rows)
        print(f"{layer:34s} {body_name:22s} N={N:6d} {us:9.1f} us {peak:7.0f} MiB {wall:8.0f} us wall", flush=True)

    for N in lengths:
        x = {"x": (TOKENS // N, N, D)}
        for causal in (False, True):
            for heads, backend in ((4, SDPBackend.CUDNN_ATTENTION), (8, SDPBackend.CUDNN_ATTENTION), (4, SDPBackend.FLASH_ATTENTION)):
                if N > 8192 and (heads, backend) != (4, SDPBackend.CUDNN_ATTENTION):
                    continue  # tens of milliseconds, and not the fastest at 8192
                name = f"{backend.name.split('_')[0].lower()}, head {D // heads}"
                add(
                    f"attention, {'causal' if causal else 'full'}",
                    name,
                    N,
                    attention(heads, causal, backend),
                    draw(N, torch.bfloat16, **x, **ATTENTION),
                )
        for layer, (shapes, bodies) in layers().items():
            for name, body in bodies.items():
                if name == "ours" and layer.split(",")[0] in failed:
                    print(f"{layer}: its check failed, so it is not timed")
                    continue
                add(layer, name, N, body, draw(N, torch.bfloat16, **x, **shapes))
    if compiled and 8192 in lengths:  # compiled code does the same work at any N
        for layer, (shapes, bodies) in layers().items():
            torch.compiler.reset()
            given = draw(8192, torch.bfloat16, x=(TOKENS // 8192, 8192, D), **shapes)
            add(layer, "eager, compiled", 8192, torch.compile(next(reversed(bodies.values()))), given)
    return rows


def table(rows: list[dict[str, Any]]) -> None:
    best = {
        (r["layer"], r["N"]): min(q["us"] for q in rows if q["layer"] == r["layer"] and q["N"] == r["N"])
        for r in rows
        if "attention" in r["layer"]
    }
    print(f"\n{'ours':34s} {'N':>6s} {'us':>8s} {'x eager':>8s} {'x comp':>7s} {'x full':>7s} {'x causal':>8s}   (times faster)")
    for row in rows:
        if not row["body"].startswith("ours"):
            continue
        same = {r["body"]: r["us"] for r in rows if r["layer"] == row["layer"] and r["N"] == row["N"]}
        once = {r["body"]: r["us"] for r in rows if r["layer"] == row["layer"]}
        ratios = [
            same.get("eager"),
            once.get("eager, compiled"),
            best.get(("attention, full", row["N"])),
            best.get(("attention, causal", row["N"])),
        ]
        shown = " ".join(f"{'-' if other is None else format(other / row['us'], '.2f'):>7s}" for other in ratios)
        print(f"{row['layer'] + row['body'].removeprefix('ours'):34s} {row['N']:6d} {row['us']:8.1f} {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", default=os.environ.get("OUT", "."), help="folder for kernels_gpu.json")
    parser.add_argument("--skip-compiled", action="store_true", help="do not time torch.compile of the references")
    parser.add_argument("--lengths", type=int, nargs="*", default=list(LENGTHS))
    given = parser.parse_args()
    started = time.time()
    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    machine |= {"cudnn": torch.backends.cudnn.version(), "python": platform.python_version(), "tokens": TOKENS, "width": D}
    print(json.dumps(machine), flush=True)
    checks = numbers()
    failed = set()
    for row in checks:
        if not row["passes"] and row["dtype"] == "bfloat16":
            failed |= {"HyperMixing"} if row["op"].startswith("hyper") else {name for name in layers() if name.startswith("HSM")}
    print(f"checks took {time.time() - started:.0f} s", flush=True)

    def save(rows: list[dict[str, Any]]) -> None:
        text = json.dumps({"machine": machine, "checks": checks, "times": rows}, indent=1)
        Path(given.out, "kernels_gpu.json").write_text(text)

    rows = times(tuple(given.lengths), not given.skip_compiled, failed, save)
    table(rows)
    steps = decoding()
    text = json.dumps({"machine": machine, "checks": checks, "times": rows, "decoding": steps}, indent=1)
    Path(given.out, "kernels_gpu.json").write_text(text)
    print(f"took {time.time() - started:.0f} s; {sum(row['passes'] for row in checks)} of {len(checks)} checks pass")


if __name__ == "__main__":
    main()
