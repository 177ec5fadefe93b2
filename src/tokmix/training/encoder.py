"""A trained encoder as the start of a run: `train DATA --from ENCODER`.

The run takes the encoder's tokenizer, stack and weights. The head is fresh, and so is what compares the two texts of a pair.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from tokmix.core.checks import nearest
from tokmix.core.model import Model, ModelConfig
from tokmix.data.prepare.tokenize import load_tokenizer
from tokmix.training import model_folder
from tokmix.training.model_record import ModelRecord
from tokmix.training.settings import NO_ENCODER, ModelSettings

if TYPE_CHECKING:
    from tokmix.data.tokens import TokenFiles

PACKAGE = "tokmix_encoders"  # a package of shipped encoders, each a model folder in it
LAYER_DECAY = 0.9
LONGEST = 512  # tokens of a row, where the encoder reads as many
# Settings of the model that the encoder decides.
OWN = ("stack", "dim", "layout", "norm", "feed_forward", "feed_forward_kind", "positions", "embedding", "ngrams", "buckets")


@dataclass(frozen=True)
class Encoder:
    name: str  # as it was given
    folder: Path
    config: ModelConfig

    @property
    def preparation(self) -> dict[str, object]:
        """Settings of `prepare` that fit the encoder."""
        return {"tokenizer": str(self.folder / "tokenizer.json"), "max_len": min(LONGEST, self.config.max_len)}


def named(start: str | None) -> str | None:
    """The encoder that train.start names, if it names one."""
    return None if start == NO_ENCODER else start


def shipped() -> dict[str, Path]:
    """Encoders of the package `tokmix_encoders`, by name, where it is installed."""
    found = importlib.util.find_spec(PACKAGE)
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found is not None else []
    return {path.parent.name: path.parent for place in places for path in sorted(place.glob("*/config.json"))}


def located(name: str | Path) -> Path:
    """A folder as it is, or that of the shipped encoder of this name."""
    return Path(name) if Path(name).is_dir() else shipped().get(str(name), Path(name))


def read(name: str) -> Encoder:
    known = shipped()
    if not located(name).is_dir():
        names = f"; shipped: {', '.join(known)}{nearest(name, known)}" if known else ""
        raise ValueError(f"no encoder {name!r}: give a folder that `tokmix pretrain` wrote{names}")
    folder = model_folder.find(located(name))
    config = model_folder.read_config(folder)
    if config.causal:
        raise ValueError(
            f"{folder} is a causal language model; a run starts from an encoder, which sees both directions: `tokmix pretrain`"
        )
    return Encoder(name, folder, config)


def model_config(encoder: Encoder, settings: ModelSettings, head: ModelConfig) -> ModelConfig:
    """head: what the task alone would take: its head, classes, dropout and separator."""
    usual = ModelSettings()
    for name in OWN:
        if getattr(settings, name) != getattr(usual, name):
            raise ValueError(f"model.{name} comes from the encoder {encoder.name}: leave it out, or train without --from")
    if head.max_len > encoder.config.max_len:
        raise ValueError(
            f"the encoder {encoder.name} reads at most {encoder.config.max_len} tokens, and rows were cut at {head.max_len}:"
            f" prepare them with max_len={encoder.config.max_len}"
        )
    pooling = settings.pooling or ("mean_max" if head.head in ("classify", "regress") else "mean")
    taken = {name: getattr(head, name) for name in ("head", "classes", "dropout", "separator", "causal")}
    return replace(encoder.config, **taken, pooling=pooling)


def check_tokenizer(encoder: Encoder, files: TokenFiles) -> None:
    """Data that was prepared before must have been cut into the encoder's own tokens."""
    if load_tokenizer(files.folder / "tokenizer.json").get_vocab() != load_tokenizer(encoder.folder / "tokenizer.json").get_vocab():
        raise ValueError(
            f"{files.folder} was prepared with another tokenizer than that of the encoder {encoder.name}: give the data as it was before,"
            f" or prepare it with tokenizer={encoder.folder / 'tokenizer.json'}"
        )


def files(encoder: Encoder) -> dict[str, str]:
    """Hashes of the encoder's files, for the record of the run."""
    return dict(ModelRecord.read(encoder.folder).json.get("files") or {})


def weights(encoder: Encoder, model: Model) -> dict[str, Tensor]:
    """What the encoder and the model have in common: all but the head, and features only where both have the same."""
    known: Mapping[str, Tensor] = model.state_dict()
    trained = model_folder.load(encoder.folder).model.state_dict()
    return {
        name: tensor
        for name, tensor in trained.items()
        if name in known and known[name].shape == tensor.shape and not name.startswith("head.")
    }


def rate_scales(model: Model, decay: float) -> dict[str, float]:
    """The share of the learning rate by parameter name: the head's is 1, each layer's that much less than the one above it."""
    if decay == 1:
        return {}
    depth = len(model.layers)
    scales: dict[str, float] = {}
    for name, _ in model.named_parameters():
        part, _, rest = name.partition(".")
        if part == "layers":
            scales[name] = decay ** (depth - int(rest.split(".")[0]))
        elif part in ("embedding", "position_code"):
            scales[name] = decay ** (depth + 1)
    return scales
