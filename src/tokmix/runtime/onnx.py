"""An exported graph in onnxruntime."""

from __future__ import annotations

from pathlib import Path

from tokmix.core.checks import at_least
from tokmix.core.optional import np
from tokmix.runtime import folder as folders
from tokmix.runtime.model import TextModel
from tokmix.runtime.states import State


class OnnxModel(TextModel):
    engine = "onnxruntime"
    tokens = 512  # what a batch holds then stays in the core's cache

    def __init__(self, folder: str | Path, about: folders.Manifest, threads: int | None = None):
        super().__init__(folder, about)
        self.shortest = min(2, about.max_len)  # a product of one token has a kernel of its own, which rounds in another way
        try:
            import onnxruntime
        except ImportError as error:
            raise ImportError(f"exported models need the package onnxruntime: pip install 'tokmix[runtime]' ({error})") from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if threads is not None:
            at_least("threads", threads, 1)
            options.intra_op_num_threads = threads
        graph = str(self.folder / folders.GRAPHS["onnx"])
        slow = ["SkipLayerNormFusion"]  # ten times slower than the sum and the norm by themselves
        self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"], disabled_optimizers=slow)

    def _run(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        *outputs, pooled = self.session.run(None, {"ids": ids, "mask": mask})
        return (outputs[0] if outputs else None), pooled

    def _step(self, ids: np.ndarray, mask: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        if self.about.int8 and ids.size == 1:  # the same kernel as for several rows
            logits, after = self._step(ids.repeat(2, 0), mask.repeat(2, 0), [leaf.repeat(2, 0) for leaf in state])
            return logits[:1], [leaf[:1] for leaf in after]
        given = {f"state_{i}": leaf for i, leaf in enumerate(state)}
        logits, *after = self.session.run(None, {"ids": ids, "mask": mask, **given})
        return logits, after


def load(folder: str | Path, threads: int | None = None) -> OnnxModel:
    """A folder that `tokmix export --format onnx` wrote. threads: of one computation; None: onnxruntime decides."""
    about = folders.read(folder)
    if about.format != "onnx":
        raise ValueError(f"{folder} holds a graph for {about.format}; the runtime reads onnx: export it with --format onnx")
    return OnnxModel(folder, about, threads)
