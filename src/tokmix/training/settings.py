"""What `train` can be told, with its defaults. Imports nothing heavy, so that a command line can show it at once.

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


@dataclass(frozen=True)
class ModelSettings:
    stack: str | None = None  # None: by the kind of data (see defaults.py)
    dim: int = 128
    layout: Literal["pre", "serialized", "post", "rezero", "parallel"] = "pre"
    norm: Literal["layer", "rms"] = "layer"
    feed_forward: int | None = None  # inner width; None: twice dim; 0: none
    feed_forward_kind: Literal["gelu", "swiglu"] = "gelu"
    dropout: float | None = None  # at each layer's input, the embedding included; None: by the kind of data
    positions: Literal["none", "learned", "sinusoidal"] | None = None  # None: by the kind of data
    pooling: Literal["mean", "max", "mean_max", "first"] | None = None  # of rows; None: max, from an encoder mean_max
    embedding: float | None = None  # scale of fresh embeddings of rows; None: by the kind of data
    ngrams: int = 1  # rows: embeddings of n-grams up to this n
    buckets: int = 32768  # how many embeddings the n-grams share
    compare: bool | None = None  # pairs: tell each token which text it stands in and whether the other has it too; None: yes
    length: int = 256  # tokens of a window of a running text

    def __post_init__(self) -> None:
        _check("model", self)
        at_least("model.dim", self.dim, 1)
        at_least("model.length", self.length, 1)


@dataclass(frozen=True)
class TrainSettings:
    task: Literal["classify", "multilabel", "regress", "lm", "mlm", "rtd", "embed", "distill"] | None = None  # None: the data's own
    generator: str | None = None  # rtd: the stack of the generator; None: the first quarter of the layers
    epochs: int | None = None  # None: by the size of the data
    minutes: float | None = None  # at most this long: the schedule is fitted to it
    steps: int | None = None  # exactly so many, instead of epochs
    lr: float | None = None  # None: by the kind of data
    warmup: float = 0.1  # share of the steps in which the learning rate rises; then it falls
    schedule: Literal["cosine", "triangle"] = "cosine"  # how the rate falls; triangle: a straight rise over warmup, a straight fall
    final_lr: float = 0.0  # where the fall ends, as a share of lr
    weight_decay: float = 0.05
    beta2: float = 0.98
    average: float | None = None  # of the running mean of the weights, what stays at each step; 0: no mean; None: by the kind of data
    clip: float = 1.0  # largest norm of the gradient; 0: any
    tokens: int | None = None  # of a batch, padding included; None: 4096, for a running text on a GPU 16384
    rows: int = 64  # most rows of a batch; windows of a running text are counted by tokens alone
    accumulate: int = 1  # batches of one step: their gradients are summed before the optimizer moves (gradient accumulation)
    grow: float = 0.0  # share of the steps over which the batches of a step grow from one to train.accumulate
    optimizer: Literal["adamw", "muon"] = "adamw"  # muon: for the matrices of the layers, AdamW for the rest
    checkpoint_layers: bool = False  # run each layer again in the backward pass: less memory, a third more time (gradient checkpointing)
    packed: bool = False  # rows without padding, where every mixer of the stack offers it
    teacher: str | None = None  # distill: the folder of a sentence encoder to learn from
    temperature: float = 0.05  # embed, distill: what likenesses are divided by; the smaller, the more the nearest wrong answers count
    documents: bool = False  # windows of a running text: documents that share a window do not see each other
    token_dropout: float | None = None  # share of the tokens hidden at each reading; None: by the kind of data
    label_smoothing: float = 0.0
    start: str | None = None  # an encoder to start from: a folder of `pretrain`, or the name of a shipped one; --from for short
    freeze: Literal["auto", "yes", "no"] = "auto"  # an encoder stays as it is, with a linear head; auto: where fine-tuning takes too long
    layer_decay: float | None = None  # each layer learns at this share of the rate of the one above it; None: 0.9 from an encoder, else 1
    pretrain: int | None = None  # epochs of a warm-up, finding hidden tokens in train; 0: none; None: 30 for small tables of single texts
    mask: float | None = None  # mlm: share of tokens hidden and asked for; None: 0.15, in a warm-up 0.3
    fraction: float = 1.0  # share of train's rows that are trained on, by a hash of each: a smaller share is part of a larger one
    holdout: float | None = None  # share of train kept apart to choose by; None: valid where it is not reported on, else a tenth or less
    evaluations: int | None = None  # on that part, evenly over the run; None: 20, or fewer: they take a tenth of the time at most
    final: Literal["valid", "test"] | None = None  # the split of the reported figure; None: test, else valid
    seed: int = 0
    save_seconds: float = 60.0  # between checkpoints
    save_steps: int | None = None  # checkpoint every so many steps too
    keep: int = 2  # checkpoints that are kept
    report_to: Literal["tensorboard", "wandb", "mlflow", "trackio"] | None = None  # a tracker that is told the lines of the log too
    log_steps: int | None = None  # between two lines of the log; None: 10, on a GPU 50, since each one waits for the device
    baseline: bool = True  # rows: fit a bag of words first, and answer by the better or by both; lm: a byte n-gram model beside it
    refit: bool = True  # rows: once the figure is known, the kept model learns from every labelled row too (not from a test split given)
    fit_time: bool = True  # rows on a CPU, where no length is given: fewer epochs where they would take over 12 s for 1,000 short rows
    balance: bool = False  # classify: weigh classes by one over their share of the rows
    device: str | None = None  # None: a GPU where there is one
    threads: int | None = None  # on a CPU; None: OMP_NUM_THREADS, else the fastest of 1, half and all in a short trial
    precision: Literal["float32", "bfloat16"] | None = None  # None: bfloat16 on a GPU, float32 elsewhere
    capture: bool = True  # on a GPU: steps as CUDA graphs, a graph for each shape of batch
    compile: Literal["auto", "yes", "no"] = "auto"  # on a GPU: layers by torch.compile; auto: where the run is long enough to gain by it
    shard: bool = False  # several processes: each keeps its part of the weights and of the optimizer's state (FSDP2)

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
    prepare: dict[str, Any] = field(default_factory=dict)  # only what was said: a prepared folder takes nothing

    @classmethod
    def of(cls, config: str | Path | None = None, given: Mapping[str, object] | None = None) -> Settings:
        """`given` holds what was said, by full name: {"train.lr": 1e-3, "model.stack": "hsm*4"}; it goes before the config."""
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
