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
        self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def _run(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        *outputs, pooled = self.session.run(None, {"ids": ids, "mask": mask})
        return (outputs[0] if outputs else None), pooled

    def _step(self, ids: np.ndarray, mask: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        given = {f"state_{i}": leaf for i, leaf in enumerate(state)}
        logits, *after = self.session.run(None, {"ids": ids, "mask": mask, **given})
        return logits, after


def load(folder: str | Path, threads: int | None = None) -> OnnxModel:
    """A folder that `tokmix export --format onnx` wrote. threads: of one computation; None: onnxruntime decides."""
    about = folders.read(folder)
    if about.format != "onnx":
        raise ValueError(f"{folder} holds a graph for {about.format}; the runtime reads onnx: export it with --format onnx")
    return OnnxModel(folder, about, threads)
