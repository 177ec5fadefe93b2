"""A model folder of `tokmix train` with the methods of an exported one, computed by torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

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


class GraphModel(TextModel):
    """A graph as a module: one of graphs.py, or a saved program."""

    engine = "torch"

    def __init__(self, folder: Path, about: Manifest, graph: nn.Module):
        super().__init__(folder, about)
        self.graph = graph

    @torch.inference_mode()
    def _run(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        *outputs, pooled = self.graph(torch.from_numpy(ids), torch.from_numpy(mask))
        return (outputs[0].numpy() if outputs else None), pooled.numpy()

    @torch.inference_mode()
    def _step(self, ids: np.ndarray, mask: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        logits, after = self.graph(torch.from_numpy(ids), torch.from_numpy(mask), [torch.from_numpy(leaf) for leaf in state])
        return logits.numpy(), [leaf.numpy() for leaf in after]


class TorchModel(GraphModel):
    """Not traced, so that serving and exporting use the same computation."""

    def __init__(self, trained: Trained):
        model = trained.model.eval()
        super().__init__(trained.folder, describe(trained), StepGraph(model) if trained.task == "lm" else RowGraph(model))


def load(folder: str | Path, imports: Sequence[str | Path] = ()) -> TorchModel:
    import_files(imports)
    return TorchModel(model_folder.load(folder))
