"""A model folder: what was trained, as Hugging Face and we ourselves read it. It appears whole or not at all; it holds no pickle.

config.json, model.safetensors              as tokmix.hf saves them (its from_pretrained reads the folder)
tokenizer.json, tokenizer_config.json       the tokenizer, byte for byte the one trained with; of lm it also puts end-of-text before a text,
                                            for Hugging Face: we ourselves ask for ids without
training.json                               the rest: task, classes, columns, data, figures, cost, settings
README.md                                   the same for people

Loading here needs neither transformers nor the network: the core model is read directly.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from tokmix.core.model import Model, ModelConfig
from tokmix.data.card import Card
from tokmix.data.prepare.tokenize import Encoder, begun, load_tokenizer
from tokmix.runs.files import new_folder, write_text
from tokmix.training.checkpoint import load_tensors

RECORD = "training.json"
FORMAT = "tokmix-training"
VERSION = 1
CONFIG_VERSION = 2
PREFIX = "core."  # tokmix.hf keeps the core model under this name


def save(out: Path, model: Model, card: Card, tokenizer: Path, record: dict[str, Any], readme: str) -> None:
    """The new folder `out`; on any failure there is none."""
    hf = _hf()
    task, roles = model.config.head, card.tokenizer["roles"]
    names = {"id2label": dict(enumerate(card.labels)), "label2id": {label: i for i, label in enumerate(card.labels)}}
    ids = {f"{name}_token_id": roles[role] for name, role in (("pad", "pad"), ("eos", "eot"), ("bos", "eot")) if role in roles}
    config = hf.TokmixConfig.from_core(model.config, **(names if task == "classify" else {}), **(ids if task == "lm" else {}))
    wrapped = hf.MODELS[task](config)
    wrapped.core.load_state_dict({name: tensor.detach().cpu() for name, tensor in model.state_dict().items()})
    with new_folder(out) as folder:
        with _no_bars():
            wrapped.save_pretrained(folder)
        # Written for its owner alone, whatever the umask says; who may read the rest may read the weights.
        (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
        _save_tokenizer(folder, tokenizer, task, roles, model.config.max_len)
        write_text(folder / RECORD, json.dumps({"format": FORMAT, "version": VERSION, **record}, indent=1, ensure_ascii=False) + "\n")
        write_text(folder / "README.md", readme)


def _save_tokenizer(folder: Path, tokenizer: Path, task: str, roles: dict[str, int], max_len: int) -> None:
    """A language model pads at the left and goes on at the right, from end-of-text as in training and in `tokmix generate`. The
    fill-mask pipeline reads [MASK] from its text, which elsewhere stays text."""
    hf, words = _hf(), load_tokenizer(tokenizer)
    if task != "lm":
        hf.wrap_tokenizer(words, roles, max_len=max_len, spelled=task == "mlm").save_pretrained(folder)
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
        return
    words = begun(words, roles["eot"])
    hf.wrap_tokenizer(words, roles, max_len=max_len, left=True, bos=roles["eot"]).save_pretrained(folder)
    write_text(folder / "tokenizer.json", words.to_str(pretty=True))


@contextmanager
def _no_bars() -> Iterator[None]:
    """Without the bar that transformers draws for a write of milliseconds."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _hf() -> Any:
    try:
        import tokmix.hf
    except ImportError as error:
        raise ImportError(f"saving a model needs the package transformers: pip install 'tokmix[lab]' ({error})") from error
    return tokmix.hf


@dataclass
class Trained:
    """A model folder, loaded."""

    folder: Path
    model: Model
    tokenizer: Any
    record: dict[str, Any]

    @property
    def task(self) -> str:
        return self.record["task"]

    @property
    def labels(self) -> list[str]:
        return self.record["labels"]

    @property
    def roles(self) -> dict[str, int]:
        return self.record["tokenizer"]["roles"]

    @property
    def pair(self) -> bool:
        return len(self.record["columns"].get("text") or ()) == 2

    def encoder(self) -> Encoder:
        return Encoder(self.tokenizer, None if self.record["stream"] else self.model.config.max_len)


def find(folder: str | Path) -> Path:
    """The model folder itself, or that of a run."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"no model folder {str(folder)!r}")
    if (folder / "config.json").is_file():
        return folder
    if (folder / "model" / "config.json").is_file():
        return folder / "model"
    if (folder / "run.json").is_file():
        raise ValueError(f"{folder} is a run that has not ended: continue it with the same command and --resume")
    raise ValueError(f"{folder} is not a model folder: it has no config.json")


def load(folder: str | Path, device: str | torch.device = "cpu") -> Trained:
    path = find(folder)
    record = _json(path, RECORD)
    if record.get("format") != FORMAT:
        raise ValueError(f"{path / RECORD} does not describe a trained model")
    if record.get("version") != VERSION:
        raise ValueError(f"{path / RECORD} has format version {record.get('version')!r}; this tokmix reads version {VERSION}")
    config = read_config(path)
    _check(path, record, config)
    model = Model(config).to(device)
    _fill(model, path)
    if not (path / "tokenizer.json").is_file():
        raise ValueError(f"{path} is damaged: tokenizer.json is missing")
    return Trained(path, model.eval(), load_tokenizer(path), record)


def _check(path: Path, record: dict[str, Any], config: ModelConfig) -> None:
    """Whether the record holds what is read from it, and is one of this model."""
    for name, kind in (("task", str), ("labels", list), ("tokenizer", dict), ("columns", dict), ("stream", bool)):
        if not isinstance(record.get(name), kind):
            raise ValueError(f"{path} is damaged: {RECORD} has no {name!r}" + (" that can be read" if name in record else ""))
    if not isinstance(record["tokenizer"].get("roles"), dict):
        raise ValueError(f"{path} is damaged: {RECORD} does not say which tokens are special")
    if record["task"] != config.head:
        raise ValueError(f"{path} is damaged: {RECORD} is of a model for {record['task']}, config.json of one for {config.head}")
    if config.head == "classify" and len(record["labels"]) != config.classes:
        raise ValueError(f"{path} is damaged: {RECORD} names {len(record['labels'])} classes, config.json counts {config.classes}")


def _json(path: Path, name: str) -> dict[str, Any]:
    if not (path / name).is_file():
        raise ValueError(f"{path} is not a model folder of `tokmix train`, or damaged: {name} is missing")
    try:
        known = json.loads((path / name).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {name} is not JSON ({error})") from None
    if not isinstance(known, dict):
        raise ValueError(f"{path} is damaged: {name} does not hold an object")
    return known


def read_config(path: Path) -> ModelConfig:
    known = _json(path, "config.json")
    if known.get("format_version") != CONFIG_VERSION:
        raise ValueError(
            f"{path / 'config.json'} has format version {known.get('format_version')!r}; this tokmix reads version {CONFIG_VERSION}"
        )
    missing = [one.name for one in fields(ModelConfig) if one.default is MISSING and one.name not in known]
    if missing:
        raise ValueError(f"{path} is damaged: config.json has no {missing[0]!r}")
    try:
        return ModelConfig(**{one.name: known[one.name] for one in fields(ModelConfig) if one.name in known})
    except ValueError as error:
        hint = "; a mixer of your own is made known with --import FILE.py" if "unknown mixer" in str(error) else ""
        raise ValueError(f"{path / 'config.json'}: {error}{hint}") from None


def _fill(model: Model, path: Path) -> None:
    if not (path / "model.safetensors").is_file():
        raise ValueError(f"{path} is damaged: model.safetensors is missing")
    tensors, _ = load_tensors(path / "model.safetensors")
    try:
        model.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise ValueError(f"{path} is damaged: model.safetensors does not fit config.json: {' '.join(str(error).split())[:300]}") from None
