"""Time and memory of a call.

GPU   median of CUDA-graph replays with the L2 emptied before each; if a call cannot be captured, of events around it.
      Also the wall time of the same call in eager Python, and the peak memory beyond its inputs.
CPU   median of calls by the host's clock; memory as the tensors that live at once, what a single operation needs inside
      it left out (and torch.compile, which steps aside while tensors are watched: its memory reads as if not compiled).
"""

from __future__ import annotations

import statistics
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Call = Callable[[], object]
FLUSH = 512 * 2**20  # bytes written between replays: several times the size of any L2
SLOW = 1.0  # a call that takes this many seconds is measured once


@dataclass(frozen=True)
class Timing:
    us: float  # of the device
    low: float  # 10th and 90th percentile
    high: float
    repeats: int
    how: str  # graph, events or clock
    wall_us: float  # in eager Python
    peak_mib: float


class Clock:
    """seconds: about how long to measure; least, most: number of repeats."""

    def __init__(self, seconds: float = 0.2, least: int = 3, most: int = 25):
        self.seconds, self.least, self.most = seconds, least, most

    def _repeats(self, one: float) -> int:
        return 1 if one > SLOW else max(self.least, min(self.most, int(self.seconds / max(one, 1e-7))))

    def __call__(self, call: Call) -> Timing:
        call()
        one = _seconds(call)
        with Live() as live:
            call()
        times = [one] if one > SLOW else [_seconds(call) for _ in range(self._repeats(one))]
        us = [seconds * 1e6 for seconds in times]
        return Timing(*_middle(us), len(us), "clock", statistics.median(us), live.peak / 2**20)


class GpuClock(Clock):
    def __init__(self, seconds: float = 0.2, least: int = 3, most: int = 25):
        super().__init__(seconds, least, most)
        self.flush = torch.empty(FLUSH, dtype=torch.uint8, device="cuda")

    def __call__(self, call: Call) -> Timing:
        with warnings.catch_warnings():
            # Of a first product in autograd's own thread, and of gradients asked for on a side stream: both are meant here.
            warnings.filterwarnings("ignore", "Attempting to run cuBLAS")
            warnings.filterwarnings("ignore", "The AccumulateGrad node's stream")
            return self._timed(call)

    def _timed(self, call: Call) -> Timing:
        one, peak = self._warm(call)
        if one > SLOW:
            return Timing(one * 1e6, one * 1e6, one * 1e6, 1, "events", one * 1e6, peak)
        repeats = self._repeats(one)
        wall = _seconds(lambda: [call() for _ in range(repeats)]) / repeats
        run: Call
        try:
            graph = self._captured(call)
            run, how = graph.replay, "graph"
        except RuntimeError:  # it waits for the host, or needs memory that a graph cannot free
            torch.cuda.synchronize()
            graph, run, how = None, call, "events"
        us = self._events(run, repeats)
        del graph, run
        torch.cuda.empty_cache()
        return Timing(*_middle(us), len(us), how, wall * 1e6, peak)

    def _warm(self, call: Call) -> tuple[float, float]:
        """Run on a side stream, as capture needs it. -> (seconds of a warm call, peak MiB)"""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            one = _seconds(call)
            peak = torch.cuda.max_memory_allocated() - before
            if one < SLOW:
                one = min(one, _seconds(call))
        torch.cuda.current_stream().wait_stream(stream)
        return one, peak / 2**20

    def _captured(self, call: Call) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph

    def _events(self, run: Call, repeats: int) -> list[float]:
        marks = []
        run()
        for _ in range(repeats):
            self.flush.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            marks.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e3 for start, end in marks]


class Live(TorchDispatchMode):
    """Peak bytes of tensors that were made inside and live at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        out = func(*args, **(kwargs or {}))
        given = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in given and storage not in self.seen:
                    self.seen.add(storage)
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._gone, storage.nbytes())
        return out

    def _gone(self, size: int) -> None:
        self.now -= size


def _seconds(call: Call) -> float:
    """From the first launch to the last result."""
    began = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _middle(us: list[float]) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile."""
    ordered = sorted(us)
    at = lambda share: ordered[round(share * (len(ordered) - 1))]
    return statistics.median(ordered), at(0.1), at(0.9)
