"""A model folder of `tokmix train` with the methods of an exported one, computed by torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

import tokmix
from tokmix.core.optional import np
from tokmix.export.graphs import RowGraph, StepGraph, state_specs
from tokmix.runtime.folder import Blend, Manifest
from tokmix.runtime.model import TextModel
from tokmix.runtime.states import State
from tokmix.training import model_folder
from tokmix.training.imports import import_files
from tokmix.training.mixture import NETWORK
from tokmix.training.model_folder import Trained


def describe(trained: Trained) -> Manifest:
    """The manifest of a model before it is exported."""
    config = trained.model.config
    steps = config.head == "lm"
    return Manifest(
        tokmix=tokmix.__version__, format="torch", int8=False, task=trained.task, labels=list(trained.labels),
        text_columns=list(trained.about.columns.text), stack=config.stack, dim=config.dim, max_len=config.max_len,
        truncate=not trained.about.stream, limit=trained.model.limit if trained.about.stream else None, roles=dict(trained.roles),
        states=state_specs(trained.model) if steps else [], blend=blend_of(trained), thresholds=list(trained.mixture.thresholds),
    )  # fmt: skip


def blend_of(trained: Trained) -> Blend | None:
    mixture = trained.mixture
    return None if mixture.by == NETWORK else Blend(mixture.network, mixture.bag, mixture.shift)


class TorchModel(TextModel):
    """Runs the graph modules without tracing, so that serving and exporting use the same computation."""

    engine = "torch"

    def __init__(self, trained: Trained):
        super().__init__(trained.folder, describe(trained))
        model = trained.model.eval()
        self.rows_graph = RowGraph(model) if trained.task != "lm" else None
        self.step_graph = StepGraph(model) if trained.task == "lm" else None

    @torch.inference_mode()
    def _run(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        assert self.rows_graph is not None
        *outputs, pooled = self.rows_graph(torch.from_numpy(ids), torch.from_numpy(mask))
        return (outputs[0].numpy() if outputs else None), pooled.numpy()

    @torch.inference_mode()
    def _step(self, ids: np.ndarray, mask: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        assert self.step_graph is not None
        given = [torch.from_numpy(leaf) for leaf in state]
        logits, after = self.step_graph(torch.from_numpy(ids), torch.from_numpy(mask), given)
        return logits.numpy(), [leaf.numpy() for leaf in after]


def load(folder: str | Path, imports: Sequence[str | Path] = ()) -> TorchModel:
    import_files(imports)
    return TorchModel(model_folder.load(folder))
