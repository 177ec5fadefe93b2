"""An exported folder: the graph, the tokenizer, and a manifest that says how to use them, with the checksum of each file.

manifest.json     format, task, labels, columns, roles of special tokens, states, what was checked, files, a checksum of itself
tokenizer.json    as in the model folder
model.onnx        or model.pt2 with `--format torch`
linear.json, linear.safetensors    the bag of words, where it answers alone or with the network
README.md         inputs and outputs for people
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from tokmix.core.optional import np
from tokmix.runs.files import Damaged, check_seal, dump_json, read_json, seal, sha256_file
from tokmix.runs.records import from_json
from tokmix.runtime.states import StateSpec

MANIFEST = "manifest.json"
FORMAT = "tokmix-export"
VERSION = 3  # 2: the same without a checksum of the manifest itself; 1: also without a bag of words and several labels
GRAPHS = {"onnx": "model.onnx", "torch": "model.pt2"}


@dataclass(frozen=True)
class Check:
    """One shape at which the exported graph was compared with torch."""

    batch: int
    length: int
    difference: float


@dataclass(frozen=True)
class Blend:
    """The blend of both models: network * the network's outputs + bag * the scores of the bag of words + shift."""

    network: float
    bag: float
    shift: float

    def __call__(self, network: np.ndarray, bag: np.ndarray) -> np.ndarray:
        return np.asarray(self.network * network + self.bag * bag + self.shift, dtype=np.float32)


@dataclass(frozen=True)
class Manifest:
    tokmix: str
    format: str  # of the graph: onnx or torch
    int8: bool
    task: str
    labels: list[str]
    text_columns: list[str]
    stack: str
    dim: int
    max_len: int  # tokens of a sequence
    truncate: bool  # whether longer texts are cut to max_len; a model of plain text begins with end-of-text, and lm refuses them
    limit: int | None  # the longest sequence of a model of plain text; None: any
    roles: dict[str, int]  # ids of the special tokens
    chunk: int | None = None  # a language model's step takes this many tokens at a time; None: any number
    states: list[StateSpec] = field(default_factory=list)
    blend: Blend | None = None  # None: only the network answers
    thresholds: list[float] = field(default_factory=list)  # multilabel: a label is given from this probability on
    source: str = ""  # sha256 of the training.json of the model that this one answers as; "" where it differs (int8, --network)
    checks: list[Check] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)  # name: sha256

    @property
    def pair(self) -> bool:
        return len(self.text_columns) == 2

    def json(self) -> str:
        return dump_json(seal({"kind": FORMAT, "version": VERSION, **asdict(self)}), ascii=False)


def checksum(path: Path) -> str:
    return sha256_file(path)[1]


def is_exported(folder: str | Path) -> bool:
    return (Path(folder) / MANIFEST).is_file()


def read(folder: str | Path) -> Manifest:
    """The manifest of a folder, after checking that its files are unchanged."""
    path = Path(folder)
    if not is_exported(path):
        raise ValueError(f"{path} is not an exported folder: it has no {MANIFEST} (`tokmix export MODEL --out DIR` writes one)")
    known = read_json(path / MANIFEST)
    kind, version = known.get("kind"), known.get("version")
    if kind != FORMAT or not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= VERSION:
        raise ValueError(
            f"{path / MANIFEST} has format {kind!r}, version {version!r}; this tokmix reads {FORMAT!r} up to version {VERSION}"
        )
    if version > 2:
        check_seal(known, path / MANIFEST)
    fields = {name: value for name, value in known.items() if name not in ("kind", "version", "checksum")}
    manifest = from_json(Manifest, fields, path / MANIFEST)
    if manifest.format not in GRAPHS:
        raise Damaged(f"{path} is damaged: {MANIFEST} has no 'format' that can be read")
    for name in {"tokenizer.json", GRAPHS[manifest.format], *manifest.files}:
        if Path(name).name != name or not (path / name).is_file():
            raise Damaged(f"{path} is damaged: {name} is missing")
        if checksum(path / name) != manifest.files.get(name):
            raise Damaged(f"{path} is damaged: {name} is not the file that was exported (its checksum differs)")
    return manifest
