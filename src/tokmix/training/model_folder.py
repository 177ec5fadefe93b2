"""A model folder: what was trained, as Hugging Face and we ourselves read it. It appears whole or not at all; it holds no pickle.

config.json, model.safetensors              as tokmix.hf saves them (its from_pretrained reads the folder)
tokenizer.json, tokenizer_config.json       the tokenizer, byte for byte the one trained with; of lm it also puts end-of-text before a text,
                                            for Hugging Face: we ourselves ask for ids without
linear.json, linear.safetensors             the bag of words, where it answers alone or with the network
trained_on.safetensors                      hashes of the texts of rows trained on
training.json                               the rest: task, classes, columns, data, figures, cost, settings; a hash of every other file, a
                                            checksum of itself
README.md                                   the same for people

Loading here needs neither transformers nor the network: the core model is read directly.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from tokmix.core.model import Model, ModelConfig
from tokmix.core.outline import outline
from tokmix.core.stack import parse
from tokmix.data.card import Card
from tokmix.data.prepare.tokenize import Encoder, begun, load_tokenizer, vocab_size
from tokmix.runs.files import Damaged, JsonObject, check_files, finite, new_folder, read_json, seal, sha256_file, write_json, write_text
from tokmix.training import linear
from tokmix.training.checkpoint import load_tensors, shapes_of
from tokmix.training.linear import Linear
from tokmix.training.mixture import NETWORK, Mixture
from tokmix.training.model_record import FORMAT, VERSION, ModelRecord
from tokmix.training.model_record import RECORD as RECORD
from tokmix.training.small_weights import expanded, without_scales

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CONFIG_VERSION = 2
READ = ("config.json", "model.safetensors", "tokenizer.json")  # what loading reads beside the record
HEADS = {"multilabel": "classify", "rtd": "tag", "embed": "none", "distill": "none"}  # of a model for a task, where it has another name
HUB = "hub:"  # before the name of a model on the Hugging Face hub
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # types in which weights may be stored
PREFIX = "core."  # tokmix.hf keeps the core model under this name


def save(
    out: Path,
    model: Model,
    card: Card,
    tokenizer: Path,
    record: Mapping[str, object],
    readme: str,
    more: Callable[[Path], None] = lambda folder: None,
) -> None:
    """The new folder `out`; on any failure there is none. `more` writes further files into it."""
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
        _save_tokenizer(folder, tokenizer, task, roles, model.config.max_len)
        write_text(folder / "README.md", readme)
        more(folder)
        for file in folder.glob("*.safetensors"):
            # Written for its owner alone, whatever the umask says; who may read the rest may read the weights.
            file.chmod((folder / "config.json").stat().st_mode)
        files = {path.name: sha256_file(path)[1] for path in sorted(folder.iterdir())}
        write_json(folder / RECORD, seal(finite({"format": FORMAT, "version": VERSION, **record, "files": files})), ascii=False)


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


def _hf() -> ModuleType:
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
    tokenizer: Tokenizer
    about: ModelRecord

    @property
    def record(self) -> JsonObject:
        """Everything in training.json."""
        return self.about.json

    @property
    def task(self) -> str:
        return self.about.task

    @property
    def labels(self) -> list[str]:
        return self.about.labels

    @property
    def roles(self) -> dict[str, int]:
        return self.about.roles

    @property
    def pair(self) -> bool:
        return len(self.about.columns.text) == 2

    @cached_property
    def mixture(self) -> Mixture:
        """How the network and the bag of words answer together."""
        return Mixture.of(self.about.answers)

    @cached_property
    def linear(self) -> Linear | None:
        if self.mixture.by == NETWORK:
            return None
        verify(self.folder, self.record, (linear.NAME, linear.WEIGHTS))
        return linear.load(self.folder)

    def encoder(self) -> Encoder:
        return Encoder(self.tokenizer, None if self.about.stream else self.model.config.max_len)


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
    """Every file that is read is compared with its hash, and every size with the weights' own before memory is taken for it."""
    path = find(folder)
    about = ModelRecord.read(path)
    config = read_config(path)
    _check(path, about, config)
    for name in READ:
        if not (path / name).is_file():
            raise Damaged(f"{path} is damaged: {name} is missing")
    _check_shapes(path, config)
    verify(path, about.json, READ)
    tokenizer = load_tokenizer(path)
    if (ids := vocab_size(tokenizer)) > config.vocab:
        raise Damaged(f"{path} is damaged: tokenizer.json has ids up to {ids - 1:,}, config.json counts {config.vocab:,}")
    model = Model(config)
    _fill(model, path)
    return Trained(path, model.to(device).eval(), tokenizer, about)


def for_transformers(name: str) -> str:
    """What from_pretrained takes: a folder, checked where it is ours, or the name behind `hub:`. A mistyped folder asks no network."""
    if name.startswith(HUB):
        return name.removeprefix(HUB)
    path = find(name)
    if (path / RECORD).is_file():
        verify(path, ModelRecord.read(path).json)
    return str(path)


def verify(path: Path, record: JsonObject, names: Sequence[str] | None = None) -> int:
    """Compare the hashes of these files (None: of all) with the record, and the record with its own -> files compared.
    A folder of before hashes were kept passes."""
    if record["version"] == 1:
        return 0
    return check_files(path, record, RECORD, names)


def _check(path: Path, about: ModelRecord, config: ModelConfig) -> None:
    """Whether the record is one of this model."""
    if HEADS.get(about.task, about.task) != config.head:
        raise Damaged(f"{path} is damaged: {RECORD} is of a model for {about.task}, config.json of one for {config.head}")
    if config.head == "classify" and len(about.labels) != config.classes:
        raise Damaged(f"{path} is damaged: {RECORD} names {len(about.labels)} classes, config.json counts {config.classes}")
    ids = [*about.roles.values(), *([] if config.separator is None else [config.separator])]
    if wrong := next((one for one in ids if not 0 <= one < config.vocab), None):
        raise Damaged(f"{path} is damaged: a special token has the id {wrong}, and config.json counts {config.vocab:,} ids")


def _check_shapes(path: Path, config: ModelConfig) -> None:
    """A model as config.json says has the weights of model.safetensors: nothing is built that the file is too small for."""
    stored = shapes_of(path / "model.safetensors")
    shapes = {name.removeprefix(PREFIX): shape for name, shape in without_scales(stored).items()}
    layers = len(parse(config.stack))
    if layers > len(shapes):  # every layer has a norm or a gain
        raise Damaged(f"{path} is damaged: config.json has {layers:,} layers, model.safetensors {len(shapes):,} tensors")
    try:
        wanted = {name: tuple(tensor.shape) for name, tensor in outline(config).state_dict().items()}
    except (RuntimeError, OverflowError, TypeError) as error:  # sizes beyond 2^63
        raise Damaged(
            f"{path} is damaged: config.json describes no model that can be built ({' '.join(str(error).split())[:200]})"
        ) from None
    if wanted != shapes:
        name = next(name for name in [*wanted, *shapes] if wanted.get(name) != shapes.get(name))
        difference = f"{name} is {shapes.get(name, 'missing')}, not {wanted.get(name, 'wanted')}"
        raise Damaged(f"{path} is damaged: model.safetensors does not fit config.json: {difference}")


def _json(path: Path, name: str) -> JsonObject:
    if not (path / name).is_file():
        raise Damaged(f"{path} is not a model folder of `tokmix train`, or damaged: {name} is missing")
    return read_json(path / name)


def read_config(path: Path) -> ModelConfig:
    known = _json(path, "config.json")
    if known.get("format_version") != CONFIG_VERSION:
        raise ValueError(
            f"{path / 'config.json'} has format version {known.get('format_version')!r}; this tokmix reads version {CONFIG_VERSION}"
        )
    missing = [one.name for one in fields(ModelConfig) if one.default is MISSING and one.name not in known]
    if missing:
        raise Damaged(f"{path} is damaged: config.json has no {missing[0]!r}")
    try:
        return ModelConfig(**{one.name: known[one.name] for one in fields(ModelConfig) if one.name in known})
    except (ValueError, TypeError, OverflowError) as error:
        hint = "; a mixer of your own is made known with --import FILE.py" if "unknown mixer" in str(error) else ""
        raise ValueError(f"{path / 'config.json'}: {error}{hint}") from None


def _fill(model: Model, path: Path) -> None:
    try:
        tensors = expanded(load_tensors(path / "model.safetensors")[0])
    except Damaged as error:
        raise Damaged(str(error) if str(path) in str(error) else f"{path} is damaged: {error}") from None
    known = model.state_dict()
    for name, tensor in tensors.items():
        own = known[name.removeprefix(PREFIX)].dtype
        if tensor.dtype not in (FLOATS if own in FLOATS else (own,)):
            raise Damaged(f"{path} is damaged: {name} of model.safetensors is {tensor.dtype}, not {own}")
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Damaged(f"{path} is damaged: {name} of model.safetensors holds numbers that are not finite")
    try:
        model.load_state_dict({name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()})
    except RuntimeError as error:
        raise Damaged(f"{path} is damaged: model.safetensors does not fit config.json: {' '.join(str(error).split())[:300]}") from None
