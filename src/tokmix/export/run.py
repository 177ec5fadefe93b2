"""Trace a model, check the graph against it, write the folder. The folder appears whole or not at all."""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from tokmix.core.checks import one_of
from tokmix.core.model import Model
from tokmix.export import check
from tokmix.export.bag import write_bag
from tokmix.export.graphs import RowGraph, StepGraph
from tokmix.export.int8 import quantise
from tokmix.export.readme import readme
from tokmix.export.torch_model import GraphModel, describe
from tokmix.runs.files import check_free, new_folder, write_text
from tokmix.runtime.folder import GRAPHS, MANIFEST, Manifest, checksum
from tokmix.runtime.onnx import OnnxModel
from tokmix.training import model_folder
from tokmix.training.imports import import_files
from tokmix.training.model_folder import RECORD

TASKS = ("classify", "multilabel", "regress", "mlm", "lm")
Example = tuple[Tensor, ...] | tuple[Tensor, Tensor, list[Tensor]]


def export(
    model: str | Path,
    out: str | Path,
    *,
    format: str = "onnx",
    int8: bool = False,
    network: bool = False,
    imports: Sequence[str | Path] = (),
) -> Manifest:
    """The folder `out` with the model as a graph, and its bag of words as arrays -> what its manifest says. network: without the bag of
    words of a model that answers with one; its answers differ."""
    one_of("format", format, GRAPHS)
    if int8 and format != "onnx":
        raise ValueError(f"--int8 works with --format onnx, not {format}")
    if format == "onnx":
        _need_onnx()
    out = Path(out)
    check_free(out)
    import_files(imports)
    trained = model_folder.load(model)
    if trained.task not in TASKS:
        raise ValueError(f"{trained.folder} is a model for {trained.task}, and export takes those for {', '.join(TASKS)}")
    about = replace(describe(trained), format=format, int8=int8)
    if network and about.blend is not None:
        about = replace(about, blend=None, thresholds=[])
    if not int8 and not network:
        about = replace(about, source=checksum(trained.folder / RECORD))
    with new_folder(out) as folder:
        shutil.copyfile(trained.folder / "tokenizer.json", folder / "tokenizer.json")
        if about.blend is not None:
            write_bag(trained.folder, folder, int8)
        graph = folder / GRAPHS[format]
        about = _write_graph(trained.model, about, graph)
        if int8:
            # The float32 graph has to agree before it is rounded: what int8 then loses is rounding alone.
            check.compare(trained.model, OnnxModel(folder, about), check.FLOAT32)
            with _silent():
                quantise(graph)
        onnx = format == "onnx"
        exported = OnnxModel(folder, about) if onnx else GraphModel(folder, about, torch.export.load(graph).module())
        about = replace(about, checks=check.compare(trained.model, exported, None if int8 else check.FLOAT32))
        if about.blend is not None and not int8:
            check.compare_answers(trained, exported)
        write_text(folder / "README.md", readme(about))
        names = sorted(path.name for path in folder.iterdir())
        about = replace(about, files={name: checksum(folder / name) for name in names})
        write_text(folder / MANIFEST, about.json())
    return about


def _write_graph(model: Model, about: Manifest, path: Path) -> Manifest:
    """Length is dynamic where the model can be traced so. Causal HyperMixing goes through long inputs in pieces, a loop
    that a trace would fix; its step takes one token at a time instead."""
    graph: nn.Module = StepGraph(model) if about.task == "lm" else RowGraph(model)
    try:
        _traced(graph, model, about, path, None)
        return about
    except ValueError:
        if about.task != "lm":
            raise
        _traced(graph, model, about, path, 1)
        return replace(about, chunk=1)


def _traced(graph: nn.Module, model: Model, about: Manifest, path: Path, length: int | None) -> None:
    """length: of the ids, or None for any up to the model's longest."""
    example, shapes = _example(model, about, length)
    names = [f"state_{i}" for i in range(len(about.states))]
    outputs = ["logits", *(f"new_{name}" for name in names)]
    if about.task != "lm":
        outputs = ["pooled"] if about.task == "mlm" else ["outputs", "pooled"]
    try:
        with _silent():
            program = torch.export.export(graph.eval(), example, dynamic_shapes=shapes, strict=False)
            _check_dynamic(program, length)
            if about.format == "torch":
                torch.export.save(program, path)
                return
            made = torch.onnx.export(program, dynamo=True, input_names=["ids", "mask", *names], output_names=outputs, verbose=False)
            assert made is not None
            made.save(path, external_data=False)
    except (RuntimeError, AssertionError, torch._dynamo.exc.TorchDynamoException, torch.onnx.errors.OnnxExporterError) as error:
        why = " ".join(str(error).partition("The error above occurred")[0].split())[:200]
        raise ValueError(f"the stack {about.stack!r} cannot be exported to {about.format} ({why})") from None


def _example(model: Model, about: Manifest, length: int | None) -> tuple[Example, tuple]:
    """Inputs to trace with, and which of their sizes are free."""
    longest = min(about.max_len, model.limit or about.max_len)
    T = length or max(1, min(7, longest))
    batch = torch.export.Dim("batch", min=1)
    free: dict[int, object] = {0: batch}
    if length is None and longest > 1:
        free[1] = torch.export.Dim("length", min=1, max=longest)
    ids, lengths = torch.zeros(3, T, dtype=torch.long), torch.tensor([T, max(1, T // 2), max(1, T - 1)])
    mask = torch.arange(T) < lengths[:, None]
    if about.task != "lm":
        return (ids, mask), (free, free)
    slots = torch.export.Dim("slots", min=0, max=1 << 20)
    sizes = [(3, 5, *spec.shape[1:]) if spec.grows else (3, *spec.shape) for spec in about.states]
    states = [torch.zeros(size, dtype=getattr(torch, spec.dtype)) for size, spec in zip(sizes, about.states, strict=True)]
    return (ids, mask, states), (free, free, [{0: batch, 1: slots} if spec.grows else {0: batch} for spec in about.states])


def _check_dynamic(program: torch.export.ExportedProgram, length: int | None) -> None:
    """A trace may fix a size without a word; such a graph would take that one length alone."""
    ids = next(node for node in program.graph.nodes if node.op == "placeholder" and node.name == "ids")
    sizes = ids.meta["val"].shape
    if isinstance(sizes[0], int) or (length is None and isinstance(sizes[1], int) and sizes[1] != 1):
        raise ValueError(f"tracing fixed the shape {list(sizes)}")


def _need_onnx() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError as error:
            raise ImportError(f"--format onnx needs the package {name}: pip install 'tokmix[export]' ({error})") from error


@contextmanager
def _silent() -> Iterator[None]:
    """Without the exporters' progress, advice and warnings about packages we do not use; what goes wrong is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
