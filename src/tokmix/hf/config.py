"""The settings of a model in config.json: the fields of ModelConfig, a format version, and names for the classes."""

from __future__ import annotations

import copy
import difflib
from dataclasses import asdict, fields
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from tokmix.core import stack
from tokmix.core.mixer import options
from tokmix.core.model import ModelConfig
from tokmix.hf.cache import LAYER_TYPE

FORMAT_VERSION = 2
CORE = tuple(field.name for field in fields(ModelConfig))
PROBLEMS: dict[str, tuple[str, ...]] = {
    "classify": ("single_label_classification", "multi_label_classification"),
    "regress": ("regression",),
}
_LABELS = ("num_labels", "id2label", "label2id")


@strict
class TokmixConfig(PreTrainedConfig):
    """The fields are those of ModelConfig, and mean the same, with more defaults:

    stack, dim, vocab, causal, max_len   a small language model
    head       none: the model class decides
    classes    as many as id2label or num_labels say, else 2; a regression has 1 output
    use_cache  None: generate() alone makes a cache; True: so does every forward pass of a causal model in eval mode; False: none does
    """

    model_type = "tokmix"
    attribute_map = {
        "vocab_size": "vocab",
        "hidden_size": "dim",
        "max_position_embeddings": "max_len",
        "tie_word_embeddings": "tie",
    }
    keys_to_ignore_at_inference = ["past_key_values"]
    # Only whole layers are sharded on their own: the embedding is also the output matrix of a tied model.
    base_model_fsdp_plan = {"layers.*": "free_full_weight"}

    stack: str = "hypermixing*4"
    dim: int = 256
    vocab: int = 8192
    causal: bool = True
    max_len: int = 512
    head: str = "none"
    classes: int | None = None
    layout: str = "pre"
    norm: str = "layer"
    feed_forward: int | str | None = "auto"
    feed_forward_kind: str = "gelu"
    dropout: float = 0.0
    positions: str = "sinusoidal"
    pooling: str = "mean"
    tie: bool = True
    embedding_std: float = 0.02
    ladder: str = "kind"
    ngrams: int = 1
    buckets: int = 32768
    separator: int | None = None
    use_cache: bool | None = None
    format_version: int = FORMAT_VERSION

    def __post_init__(self, **more: Any) -> None:
        if self.format_version != FORMAT_VERSION:
            raise ValueError(f"model format version {self.format_version!r} is unknown; this tokmix reads version {FORMAT_VERSION}")
        for key in more:  # Hugging Face keeps any attribute; a name close to one of ours is a typo
            if close := difflib.get_close_matches(key, CORE, n=1, cutoff=0.85):
                raise ValueError(f"TokmixConfig has no setting {key!r}, did you mean {close[0]!r}?")
        self._count_classes(more.pop("num_labels", None))
        self._settle()
        super().__post_init__(num_labels=self.classes, **more)

    def _count_classes(self, num_labels: int | None) -> None:
        named = None if self.id2label is None else len(self.id2label)
        if self.head == "regress":
            self.classes = 1  # the core ignores it then
        given = {"classes": self.classes, "num_labels": num_labels, "names in id2label": named}
        counts = {what: number for what, number in given.items() if number is not None}
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{what}: {number}" for what, number in counts.items())
            raise ValueError(f"head={self.head!r} has contradicting numbers of outputs ({shown})")
        self.classes = next(iter(counts.values()), 2)

    def _settle(self) -> None:
        """Let the core check and normalise all fields; the problem type follows from the head."""
        for name, value in asdict(self.core()).items():
            setattr(self, name, value)
        fitting = PROBLEMS.get(self.head, ())
        known = [problem for problems in PROBLEMS.values() for problem in problems]
        if self.problem_type is not None and (self.problem_type not in fitting if fitting else self.problem_type not in known):
            named = ", ".join(f"{problem} with head {head!r}" for head, problems in PROBLEMS.items() for problem in problems)
            raise ValueError(f"problem_type={self.problem_type!r} does not fit head={self.head!r}; known: {named}")
        if self.problem_type is None and (self.head == "regress" or (fitting and self.classes != 1)):
            self.problem_type = fitting[0]  # type: ignore[assignment]

    def core(self) -> ModelConfig:
        """The same settings for tokmix.Model."""
        return ModelConfig(**{name: getattr(self, name) for name in CORE})

    @classmethod
    def from_core(cls, config: ModelConfig, **more: Any) -> TokmixConfig:
        """more: names of the classes (id2label) and other settings of a Hugging Face config."""
        return cls(**{**asdict(config), **more})

    def with_head(self, head: str) -> TokmixConfig:
        """This config if it has this head, else a copy with it."""
        if head == self.head:
            return self
        changed = copy.deepcopy(self)
        changed.head = head
        if changed.problem_type not in PROBLEMS.get(head, ()):
            changed.problem_type = None
        if head == "regress":
            changed.classes = changed.num_labels = 1
        changed._settle()
        return changed

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As the parent's, but missing or unknown fields are errors, and changes are checked too."""
        for name in ("format_version", "stack", "dim", "vocab", "causal", "max_len"):
            if name not in config_dict and name not in kwargs:
                raise ValueError(f"the config of this model has no {name!r}: not written by this tokmix, or damaged")
        changes = {key: kwargs.pop(key) for key in list(kwargs) if key in (*CORE, *_LABELS, "problem_type")}
        return super().from_dict(_merge(config_dict, changes), **kwargs)

    @property
    def num_labels(self) -> int | None:
        return None if self.id2label is None else len(self.id2label)

    @num_labels.setter
    def num_labels(self, number: int) -> None:
        """As the parent's; the head has as many outputs."""
        if self.id2label is None or len(self.id2label) != number:
            self.id2label = {i: f"LABEL_{i}" for i in range(number)}
            self.label2id = {name: i for i, name in self.id2label.items()}
        self.classes = number

    @property
    def num_hidden_layers(self) -> int:
        return len(stack.parse(self.stack))

    @property
    def num_attention_heads(self) -> int:
        """Heads of the first mixer that has heads; 1 if none has."""
        for spec in stack.parse(self.stack):
            if "heads" in (known := options(spec.name)):
                return spec.integer("heads", known["heads"].default)
        return 1

    @property
    def layer_types(self) -> list[str]:
        """The layers of a cache. It has no setter, so that it is never read from a file."""
        return [LAYER_TYPE] * self.num_hidden_layers

    def validate_layer_type(self) -> None:
        """The parent's check knows only the layers of its own models."""


def _merge(known: dict[str, object], changes: dict[str, object]) -> dict[str, object]:
    """The settings of a folder with those that a user's script changes: another head or number of classes needs other names."""
    changes = {key: value for key, value in changes.items() if value is not None or key == "feed_forward"}
    if "head" not in changes and known.get("head") in ("classify", "regress"):
        if "problem_type" in changes:
            changes["head"] = "regress" if changes["problem_type"] == "regression" else "classify"
        elif changes.get("num_labels") == 1:
            changes["head"] = "regress"
    if changes.get("head", known.get("head")) != known.get("head"):
        known = _without(known, "problem_type", "classes", *_LABELS)
    elif "id2label" in changes or changes.get("num_labels", changes.get("classes", known.get("classes"))) != known.get("classes"):
        known = _without(known, "classes", *_LABELS)
    return {**known, **changes}


def _without(known: dict[str, object], *names: str) -> dict[str, object]:
    return {key: value for key, value in known.items() if key not in names}
