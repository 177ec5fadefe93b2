"""The settings of `train` with their defaults. Imports nothing heavy, so that a command line can show them at once.

Defaults < --config (a file or the name of a recipe) < options of the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

from tokmix.core.checks import at_least, nearest, typed, within
from tokmix.data.prepare.settings import PrepareSettings

RECIPES = Path(__file__).parent / "recipes"
NO_ENCODER = "none"  # as train.start: start from nothing, also where an encoder is shipped


@dataclass(frozen=True)
class ModelSettings:
    stack: str | None = None  # mixers from the bottom layer up, such as 'hsm*2, attention(heads=4)'; None: by the kind of data
    dim: int = 128  # width of the model
    layout: Literal["pre", "serialized", "post", "rezero", "parallel"] = "pre"  # order of norms, residual connections and layers in a block
    norm: Literal["layer", "rms"] = "layer"  # LayerNorm or RMSNorm
    feed_forward: int | None = None  # inner width of the feed-forward nets; 0: none; None: twice model.dim
    feed_forward_kind: Literal["gelu", "swiglu"] = "gelu"  # activation of the feed-forward nets
    dropout: float | None = None  # dropout rate at the input of each layer, the embedding included; None: by the kind of data
    positions: Literal["none", "learned", "sinusoidal"] | None = None  # position encoding at the input; None: by the kind of data
    pooling: Literal["mean", "max", "mean_max", "first"] | None = None  # of the tokens of a row; None: max, from an encoder mean_max
    embedding: float | None = None  # rows: scale of new embeddings; None: by the kind of data
    ngrams: int = 1  # rows: longest n-gram that gets an embedding
    buckets: int = 32768  # number of embeddings that the n-grams share
    compare: bool | None = None  # pairs: mark for each token which text it is in and whether the other text has it; None: yes
    length: int = 256  # tokens in a window of running text

    def __post_init__(self) -> None:
        _check("model", self)
        at_least("model.dim", self.dim, 1)
        at_least("model.length", self.length, 1)


@dataclass(frozen=True)
class TrainSettings:
    task: Literal["classify", "multilabel", "regress", "lm", "mlm", "rtd", "embed", "distill"] | None = None  # None: the task of the data
    generator: str | None = None  # rtd: stack of the generator; None: the first quarter of the layers
    epochs: int | None = None  # passes over the data; None: by the size of the data
    minutes: float | None = None  # time limit; the learning-rate schedule is fitted to it
    steps: int | None = None  # number of steps, instead of epochs
    lr: float | None = None  # highest learning rate; None: by the kind of data
    warmup: float = 0.1  # share of the steps in which the learning rate rises
    schedule: Literal["cosine", "triangle"] = "cosine"  # how the learning rate falls after the rise; triangle: in a straight line
    final_lr: float = 0.0  # learning rate at the end, as a share of train.lr
    weight_decay: float = 0.05  # weight decay of the optimizer
    beta2: float = 0.98  # beta2 of AdamW
    average: float | None = None  # decay of the running mean of the weights; 0: no mean; None: by the kind of data
    clip: float = 1.0  # largest norm of the gradient; 0: no limit
    tokens: int | None = None  # most tokens of a batch, padding included; None: 4096, for running text on a GPU 16384
    rows: int = 64  # most rows of a batch; for running text train.tokens is the only limit
    accumulate: int = 1  # batches in a step: their gradients are summed (gradient accumulation)
    grow: float = 0.0  # share of the steps over which the batches of a step grow from one to train.accumulate
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: Muon for the matrices of the layers, AdamW for the rest
    checkpoint_layers: bool = False  # gradient checkpointing: run each layer again in the backward pass; less memory, a third more time
    packed: bool = False  # rows without padding, if every mixer of the stack supports it
    teacher: str | None = None  # distill: folder of the sentence encoder to learn from
    temperature: float = 0.05  # embed, distill: similarities are divided by it; a small value puts more weight on the hardest negatives
    documents: bool = False  # running text: documents in one window do not see each other
    token_dropout: float | None = None  # share of the tokens hidden each time a row is read; None: by the kind of data
    label_smoothing: float = 0.0  # share of the target probability that all classes get equally
    start: str | None = None  # encoder to start from: a folder, the name of a shipped one, or none; None: a shipped one where it fits
    freeze: Literal["auto", "yes", "no"] = "auto"  # keep the encoder fixed and train a linear head; auto: where fine-tuning takes too long
    layer_decay: float | None = None  # learning rate of each layer as a share of that of the layer above; None: 0.9 from an encoder, else 1
    pretrain: int | None = None  # epochs of warm-up on hidden tokens of train; 0: none; None: 30 for small tables of single texts
    mask: float | None = None  # mlm: share of the tokens hidden and predicted; None: 0.15, in a warm-up 0.3
    fraction: float = 1.0  # share of the rows of train to use, chosen by hash: a smaller share is part of a larger one
    holdout: float | None = None  # share of train held out to choose weights by; None: valid if it is not reported, else a tenth or less
    evaluations: int | None = None  # evaluations on held-out rows, evenly spaced; None: 20, or fewer to take at most a tenth of the time
    final: Literal["valid", "test"] | None = None  # split of the reported figures; None: test, else valid
    seed: int = 0  # seed of initial weights, data order and dropout
    save_seconds: float = 60.0  # seconds between checkpoints
    save_steps: int | None = None  # steps between checkpoints, in addition to train.save_seconds
    keep: int = 2  # number of checkpoints to keep
    report_to: Literal["tensorboard", "wandb", "mlflow", "trackio"] | None = None  # experiment tracker that also gets the lines of the log
    log_steps: int | None = None  # steps between two lines of the log; None: 10, on a GPU 50, because each line waits for the GPU
    baseline: bool = True  # rows: also fit a bag of words, and answer by the better of the two or by both; lm: also fit a byte n-gram model
    refit: bool = True  # rows: after the figures are measured, train the kept model on all labelled rows, except a given test split
    fit_time: bool = True  # rows on a CPU with no length given: fewer epochs if they would take over 12 s per 1,000 short rows
    balance: bool = False  # classify: weight each class by one over its share of the rows
    device: str | None = None  # cpu, cuda or cuda:N; None: a GPU if there is one
    threads: int | None = None  # threads on a CPU; None: OMP_NUM_THREADS, else the fastest of 1, half and all in a short trial
    precision: Literal["float32", "bfloat16"] | None = None  # None: bfloat16 on a GPU, float32 elsewhere
    capture: bool = True  # on a GPU: run steps as CUDA graphs, one for each shape of batch
    compile: Literal["auto", "yes", "no"] = "auto"  # on a GPU: use torch.compile; auto: if the run is long enough to gain time
    shard: bool = False  # several processes: each holds a part of the weights and of the optimizer state (FSDP2)

    def __post_init__(self) -> None:
        _check("train", self)
        for name in ("rows", "accumulate"):
            at_least(f"train.{name}", getattr(self, name), 1)
        at_least("train.keep", self.keep, 1)
        for name in ("tokens", "epochs", "steps", "evaluations", "save_steps", "log_steps", "threads"):
            if getattr(self, name) is not None:
                at_least(f"train.{name}", getattr(self, name), 1)
        at_least("train.seed", self.seed, 0)
        within("train.seed", self.seed, 0, 2**63 - 1)
        for name in ("warmup", "final_lr", "token_dropout", "holdout", "label_smoothing"):
            if getattr(self, name) is not None:
                within(f"train.{name}", getattr(self, name), 0, 0.9)
        within("train.grow", self.grow, 0, 1)
        within("train.temperature", self.temperature, 0.001, 10)
        if self.grow and self.accumulate == 1:
            raise ValueError(f"train.grow={self.grow} grows a step up to train.accumulate batches, and that is 1: give both")
        if self.mask is not None:
            within("train.mask", self.mask, 0.01, 1)
        if not 0 < self.fraction <= 1:
            raise ValueError(f"train.fraction={self.fraction} should be above 0 and at most 1")
        if self.pretrain is not None:
            at_least("train.pretrain", self.pretrain, 0)
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise ValueError(f"train.layer_decay={self.layer_decay} should be above 0 and at most 1")
        for name in ("average", "beta2"):
            if getattr(self, name) is not None and not 0 <= getattr(self, name) < 1:
                raise ValueError(f"train.{name}={getattr(self, name)} should be at least 0 and below 1")
        for name in ("weight_decay", "clip"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"train.{name}={getattr(self, name)} should be a finite number of at least 0")
        if self.optimizer == "muon" and self.shard:
            raise ValueError("train.optimizer='muon' needs whole matrices, and train.shard cuts them: leave one of them out")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise ValueError(f"train.lr={self.lr} should be a finite number above 0")
        for name in ("minutes", "save_seconds"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise ValueError(f"train.{name}={getattr(self, name)} should be above 0")


def _check(group: str, settings: object) -> None:
    for name, hint in get_type_hints(type(settings)).items():
        typed(f"{group}.{name}", getattr(settings, name), hint)


GROUPS: dict[str, type] = {"model": ModelSettings, "train": TrainSettings, "prepare": PrepareSettings}


@dataclass(frozen=True)
class Settings:
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    prepare: dict[str, Any] = field(default_factory=dict)  # only what was set: a prepared folder takes no settings

    @classmethod
    def of(cls, config: str | Path | None = None, given: Mapping[str, object] | None = None) -> Settings:
        """`given` holds settings by full name, {"train.lr": 1e-3, "model.stack": "hsm*4"}; they override the config."""
        known = _flat(read_config(config)) if config is not None else {}
        known |= dict(given or {})
        parts: dict[str, dict[str, Any]] = {name: {} for name in GROUPS}
        for name, value in known.items():
            group, key = _place(name)
            parts[group][key] = value
        PrepareSettings.of(**parts["prepare"])
        return cls(ModelSettings(**parts["model"]), TrainSettings(**parts["train"]), parts["prepare"])

    def record(self) -> dict[str, dict[str, object]]:
        return {"model": asdict(self.model), "train": asdict(self.train), "prepare": self.prepare}


def _place(name: str) -> tuple[str, str]:
    """'train.lr' -> ('train', 'lr')"""
    every = [f"{group}.{one.name}" for group, settings in GROUPS.items() for one in fields(settings)]
    if name not in every:
        raise ValueError(f"unknown setting {name!r}{nearest(name, every)}")
    group, _, key = name.partition(".")
    return group, key


def _flat(config: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for group, values in config.items():
        if group == "about":
            continue
        if group not in GROUPS:
            raise ValueError(f"unknown part {group!r} of a config; known: {', '.join(GROUPS)}{nearest(group, GROUPS)}")
        if values is not None and not isinstance(values, dict):  # null: a part of a .yaml file with nothing in it
            raise ValueError(f"part {group!r} of a config should hold settings by name, not {values!r}")
        found |= {f"{group}.{key}": value for key, value in (values or {}).items()}
    return found


def recipes() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.json"))


def read_config(source: str | Path) -> dict[str, Any]:
    """A .json (or .yaml) file with the parts model, train and prepare, or the name of a recipe."""
    path = Path(source)
    if not path.is_file():
        if str(source) not in recipes():
            known = recipes()
            raise ValueError(f"config {str(source)!r} is neither a file nor a recipe: {', '.join(known)}{nearest(source, known)}")
        path = RECIPES / f"{source}.json"
    config = read_file(path)
    if not isinstance(config, dict):
        raise ValueError(f"{path} should hold the parts {', '.join(GROUPS)}")
    return config


def read_file(path: Path) -> object:
    """What a .json (or .yaml) file holds."""
    try:
        return _yaml(path) if path.suffix in (".yaml", ".yml") else json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def _yaml(path: Path) -> object:
    try:
        import yaml
    except ImportError as error:
        raise ImportError(f"reading {path} needs the package PyYAML; a .json config needs nothing") from error

    class Loader(yaml.SafeLoader):
        """YAML 1.1, which PyYAML reads, takes 1e-3 for a text and wants 1.0e-3; here it is a number, as in JSON and YAML 1.2."""

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from None


def differences(before: Mapping[str, object], now: Mapping[str, object], without: Iterable[str] = ()) -> list[str]:
    """'train.lr=0.001, was 0.01' for each setting of two records that is not the same."""
    old, new = (_flat(json.loads(json.dumps(record))) for record in (before, now))
    return [
        f"{name}={new.get(name)!r}, was {old.get(name)!r}"
        for name in dict.fromkeys([*old, *new])
        if name not in without and old.get(name) != new.get(name)
    ]
