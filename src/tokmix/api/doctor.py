"""`tokmix doctor`: what is installed, which kernels run on this machine and why not, threads, disk, and a short self-test."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

import tokmix

OK, NOTE, FAULT = "ok", "note", "fault"
INTERNAL = ("test", "docs")  # extras of this repository's own work
SHOWN = 3  # missing packages of an extra that are named


@dataclass(frozen=True)
class Finding:
    """One line of the report. A note limits what can be done here; a fault means that something does not work."""

    about: str
    state: str
    text: str

    def line(self) -> str:
        return f"{self.state:<6} {self.about:<12} {self.text}"


def diagnose(self_test: bool = True) -> Iterator[Finding]:
    """Findings as they are made. The self-test takes about ten seconds."""
    yield Finding("tokmix", OK, f"{tokmix.__version__} in {Path(tokmix.__file__).parent}")
    yield Finding("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield from _extras()
    if util.find_spec("torch") is None:
        yield Finding("torch", NOTE, "not installed: exported models run (tokmix.runtime); to train, pip install 'tokmix[lab]'")
        return
    yield from _torch()
    yield _kernels()
    yield _disk()
    if self_test:
        yield from _self_test()


def _extras() -> Iterator[Finding]:
    """Each extra: whole, or what is missing."""
    try:
        package = metadata.metadata("tokmix")
        lines = metadata.requires("tokmix") or []
    except metadata.PackageNotFoundError:
        yield Finding("extras", NOTE, "tokmix is not installed as a package: its extras are unknown")
        return
    for extra in package.get_all("Provides-Extra") or []:
        if extra in INTERNAL:
            continue
        missing = [name for name in _needs(lines, extra) if not _installed(name)]
        shown = ", ".join(missing[:SHOWN]) + (f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else "")
        state, text = (NOTE, f"missing: {shown}; pip install 'tokmix[{extra}]'") if missing else (OK, "complete")
        yield Finding(f"[{extra}]", state, text)


def _needs(lines: list[str], extra: str) -> list[str]:
    """Names of the packages that an extra asks for on this system, those of the extras that it names included."""
    found: list[str] = []
    todo, seen = [extra], set[str]()
    while todo:
        one = todo.pop()
        seen.add(one)
        for line in lines:
            need, _, marker = line.partition(";")
            if f'extra == "{one}"' not in marker.replace("'", '"') or not _for_this_system(marker):
                continue
            name = need.split("[")[0].strip()
            for sign in "<>=!~ (":
                name = name.split(sign)[0]
            if name == "tokmix":
                todo += [part.strip() for part in need.split("[")[1].split("]")[0].split(",") if part.strip() not in seen]
            else:
                found.append(name)
    return sorted(set(found))


def _for_this_system(marker: str) -> bool:
    return "platform_system" not in marker or platform.system() in marker


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _torch() -> Iterator[Finding]:
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    yield Finding("torch", OK, f"{torch.__version__}")
    threads = f"{torch.get_num_threads()} of torch, {cores} cores, load {busy:.1f}"
    text = f"{threads}: other work keeps the cores busy, so times are longer" if busy > cores else threads
    yield Finding("threads", NOTE if busy > cores else OK, text)
    if not torch.cuda.is_available():
        yield Finding("gpu", NOTE, "none that torch can use: everything runs on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield Finding("gpu", OK, f"{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")


def _kernels() -> Finding:
    """Whether Triton kernels run, or plain torch, and why."""
    import torch

    from tokmix.ops import dispatch

    plain = "plain torch runs in place of kernels, with the same numbers"
    if dispatch.forced() == "reference":
        return Finding("kernels", NOTE, f"TOKMIX_IMPL=reference is set: {plain}")
    if not torch.cuda.is_available():
        return Finding("kernels", OK, f"they need an NVIDIA GPU: {plain}")
    if not dispatch.HAS_TRITON:
        return Finding("kernels", NOTE, f"triton is not installed (pip install 'tokmix[kernels]'): {plain}")
    if not dispatch.room(torch.device("cuda", torch.cuda.current_device())):
        why = "an AMD GPU" if torch.version.hip else "a GPU older than Ampere, or a ptxas before 12.9 on Hopper (set TRITON_PTXAS_PATH)"
        return Finding("kernels", NOTE, f"{why}: {plain}")
    return Finding("kernels", OK, f"Triton kernels run on this GPU (triton {metadata.version('triton')})")


def _disk() -> Finding:
    free = {place: shutil.disk_usage(place).free / 2**30 for place in {str(Path.cwd()), tempfile.gettempdir()}}
    text = ", ".join(f"{gib:.1f} GiB free in {place}" for place, gib in sorted(free.items()))
    low = min(free.values()) < 1
    return Finding("disk", NOTE if low else OK, f"{text}{': a run may not find room' if low else ''}")


def _self_test() -> Iterator[Finding]:
    """Small, real work: every mixer, then a run from rows to a model folder where the lab is installed."""
    yield _tried("mixers", _try_mixers)
    if all(util.find_spec(name) for name in ("tokenizers", "safetensors", "sklearn", "datasets")):
        yield _tried("training", _try_training)


def _tried(about: str, test: Callable[[], str]) -> Finding:
    began = time.perf_counter()
    try:
        text = test()
    except Exception as error:  # a report, so that the other findings are shown too
        return Finding(about, FAULT, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return Finding(about, OK, f"{text} ({time.perf_counter() - began:.1f} s)")


def _try_mixers() -> str:
    """Padded = alone for every mixer, on the device that a run would take."""
    import torch

    from tokmix.core.mixer import create, mixer_class, mixers
    from tokmix.core.segments import Segments

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    lengths = [5, 16, 9]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = torch.randn(3, 16, 32).to(device)
        for name in mixers():
            mixer = create(name, 32, causal="bidirectional" not in mixer_class(name).modes, max_len=16).to(device).eval()
            with torch.no_grad():
                together = mixer(x, Segments.from_lengths(lengths).to(device))
                for row, length in enumerate(lengths):
                    alone = mixer(x[row : row + 1, :length], Segments.from_lengths([length]).to(device))
                    torch.testing.assert_close(
                        together[row : row + 1, :length], alone, atol=1e-4, rtol=1e-4, msg=f"{name}: padded is not alone"
                    )
    return f"{len(mixers())} mixers give the same numbers padded and alone on {device.type}"


def _try_training() -> str:
    """From rows to a model folder, and from the folder to an answer."""
    words = {"good": ["lovely", "warm", "bright", "fine"], "bad": ["dull", "cold", "grey", "awful"]}
    rows = [(f"the {thing} was {word}", label) for label in words for word in words[label] for thing in ("film", "day", "road", "song")]
    small = {"model.dim": 16, "train.steps": 60, "train.lr": 5e-3, "train.holdout": 0, "train.baseline": False, "train.refit": False}
    with tempfile.TemporaryDirectory() as folder:
        tokmix.train(rows, Path(folder) / "run", stack="hypermixing(hidden=16)", **small)  # type: ignore[arg-type]
        answers = tokmix.load(Path(folder) / "run").predict([text for text, _ in rows])
    right = sum(answer == label for answer, (_, label) in zip(answers, rows, strict=True))
    if right < 0.9 * len(rows):
        raise RuntimeError(f"a small model learned only {right} of {len(rows)} rows")
    return f"a model is trained, saved and loaded; it answers {right} of {len(rows)} rows right"


def report(self_test: bool, say: Callable[[str], None]) -> list[Finding]:
    """Say each finding as it is made -> all of them"""
    found = []
    for finding in diagnose(self_test):
        say(finding.line())
        found.append(finding)
    return found
