"""The teacher's vectors, computed once and kept beside the token files.

    teacher/train.float16       a vector for each row, in the order of the rows; a run that was stopped goes on behind the last block
    teacher/vocabulary.float16  a vector for each token of the vocabulary, read alone: the student's embedding starts there
    teacher/card.json           which teacher, the width of its vectors, what reading cost, a checksum of every block and of itself

A block whose checksum does not fit, and what follows it, is computed again.

A vector is the mean over the last layer's tokens, scaled to length 1, as sentence-transformers has it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.checks import reading_model
from tokmix.core.optional import need, np
from tokmix.core.segments import Segments
from tokmix.data.batches.rows import lay_out
from tokmix.data.card import Card
from tokmix.data.prepare.tokenize import load_tokenizer
from tokmix.data.tokens import TokenFiles
from tokmix.runs.files import Damaged, JsonObject, check_seal, read_json, seal, sha256_together, write_json
from tokmix.runs.locks import RUN_LOCK, holding
from tokmix.runs.records import from_json
from tokmix.show.progress import Progress

FOLDER, CARD, VOCABULARY = "teacher", "card.json", "vocabulary"
BLOCK = 4096  # rows that are computed, sorted by length, and written together
TOKENS = 4096  # of a batch


class Teacher:
    """A folder of a sentence encoder as save_pretrained and sentence-transformers write it."""

    def __init__(self, folder: str | Path, device: torch.device, half: bool = False):
        self.folder, self.device = Path(folder), device
        check(self.folder)
        transformers = need("transformers", "a teacher")
        with reading_model(self.folder):
            model = transformers.AutoModel.from_pretrained(self.folder, local_files_only=True).eval().requires_grad_(False)
        self.model = model.to(device, torch.bfloat16 if half else torch.float32)
        self.width = int(self.model.config.hidden_size)
        words = self.model.get_input_embeddings().weight.numel()
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters()) - words  # a token is multiplied with each

    def card(self) -> JsonObject:
        return {"name": self.folder.name, "sha256": teacher_hash(self.folder)}

    def states(self, ids: Tensor, segments: Segments | None = None) -> tuple[Tensor, ...]:
        """Of the embedding and of each layer, [B, T, width] each."""
        width = ids.shape[1]
        mask = None if segments is None else segments.mask[:, None, None, :].expand(-1, 1, width, width)
        found: tuple[Tensor, ...] = self.model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        return found

    def vocabulary(self, card: Card) -> np.ndarray:
        """A vector for each token read alone, [V, width] float16; zeros for what the teacher does not know."""
        roles, words = card.tokenizer["roles"], len(load_tokenizer(self.folder / "tokenizer.json").get_vocab())
        found = np.zeros((card.tokenizer["vocab"], self.width), dtype=np.float16)
        found[:words] = self.vectors([np.array([roles["cls"], token, roles["sep"]]) for token in range(words)])
        return found

    @torch.inference_mode()
    def vectors(self, texts: list[np.ndarray]) -> np.ndarray:
        """The ids of some texts, their special tokens included -> [texts, width] float16"""
        order = np.argsort([len(ids) for ids in texts], kind="stable")
        found = np.empty((len(texts), self.width), dtype=np.float16)
        for chosen in _batches(order, texts):
            lengths = np.array([len(texts[place]) for place in chosen])
            ids = lay_out(np.concatenate([texts[place] for place in chosen]), lengths, int(lengths[-1]), 0)
            mask = torch.arange(int(lengths[-1])) < torch.from_numpy(lengths)[:, None]
            found[chosen] = self._mean(ids.to(self.device), mask.to(self.device)).cpu().numpy()
        return found

    def _mean(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return F.normalize((hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), dim=-1).half()


def _batches(order: np.ndarray, texts: list[np.ndarray]) -> Iterator[np.ndarray]:
    """Texts from short to long in batches of at most TOKENS, padding included."""
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - begin) * len(texts[order[end]]) > TOKENS:
            yield order[begin:end]
            begin = end


def teacher_hash(folder: str | Path) -> str:
    """Of all that decides a teacher's outputs: configuration, weights, tokenizer."""
    files = [path for path in Path(folder).iterdir() if path.suffix in (".safetensors", ".bin")]
    return sha256_together([*files, *(Path(folder) / name for name in ("config.json", "tokenizer.json"))])


def check(folder: Path) -> None:
    """That a folder is a teacher whose vectors are a mean over tokens."""
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is no sentence encoder: it has no {name}; distill reads what sentence-transformers saved")
    pooling = folder / "1_Pooling" / "config.json"
    if pooling.is_file() and not read_json(pooling).get("pooling_mode_mean_tokens", True):
        raise ValueError(f"{folder} does not take the mean over its tokens, and distill learns from teachers that do")


def check_tokenizer(teacher: str | Path, files: TokenFiles) -> None:
    words = load_tokenizer(Path(teacher) / "tokenizer.json").get_vocab()
    if not words.items() <= files.tokenizer().get_vocab().items():  # `prepare` may add a token for the end of a text
        raise ValueError(f"{files.folder} was prepared with another tokenizer than that of the teacher {teacher}")


def start_of_embedding(words: Tensor, fresh: Tensor, std: float) -> Tensor:
    """words [V, D]: what the teacher says of each token; a token that it does not know keeps its fresh weights."""
    known = words.abs().sum(1, keepdim=True) > 0
    unit = F.normalize(words, dim=1) * words.shape[1] ** 0.5 * std
    return torch.where(known, unit, fresh)


@dataclass(frozen=True)
class VectorCard:
    """teacher/card.json"""

    name: str
    sha256: str  # of the teacher's files
    width: int = 0
    tokens: int = 0  # that it reads
    flops: int = 0
    seconds: float = 0.0
    blocks: dict[str, list[str]] = field(default_factory=dict)  # by file: a checksum of each block of rows

    @classmethod
    def read(cls, folder: Path) -> VectorCard:
        path = folder / CARD
        known = read_json(path)
        check_seal(known, path)
        return from_json(cls, {name: value for name, value in known.items() if name != "checksum"}, path)

    def write(self, folder: Path) -> None:
        write_json(folder / CARD, seal(asdict(self)))


class Vectors:
    """The vectors beside a prepared folder: `make` computes what is missing."""

    def __init__(self, files: TokenFiles):
        self.files, self.folder = files, files.folder / FOLDER

    def make(self, teacher: str, device: torch.device, progress: bool | None = None) -> None:
        """Several runs may share the folder: one computes, the others wait for it."""
        check(Path(teacher))
        check_tokenizer(teacher, self.files)
        sha256 = teacher_hash(teacher)
        if self._complete(teacher, sha256):
            return
        with holding(self.folder / RUN_LOCK):
            if self._complete(teacher, sha256):
                return
            model = Teacher(teacher, device)
            tokens = sum(self.files[name].tokens for name in self.files.splits)
            card = self.card if (self.folder / CARD).is_file() else VectorCard(Path(teacher).name, sha256)
            self._write(replace(card, width=model.width, tokens=tokens, flops=2 * model.parameters * tokens), model, progress)

    def _complete(self, teacher: str, sha256: str) -> bool:
        if not (self.folder / CARD).is_file():
            return False
        if self.card.sha256 != sha256:
            raise ValueError(f"{self.folder} holds the vectors of another teacher than {teacher}: remove it, or name that teacher")
        return all(self._whole(name, self.card) == self._rows(name) for name in (VOCABULARY, *self.files.splits))

    def verify(self) -> int:
        """Read everything, also what a run has not computed to the end yet -> files; Damaged where something has changed."""
        names = [name for name in (VOCABULARY, *self.files.splits) if self.card.blocks.get(name)]
        for name in names:
            if self._whole(name, self.card) < min(BLOCK * len(self.card.blocks[name]), self._rows(name)):
                raise Damaged(f"{self._path(name)} is damaged: its content has changed")
        return len(names)

    def of(self, name: str) -> np.ndarray:
        """[rows of the split, width] float16; "vocabulary": [tokens, width]"""
        path, rows, width = self._path(name), self._rows(name), self.width
        found = path.stat().st_size // (2 * width) if path.is_file() else 0
        if found != rows:
            raise ValueError(f"{path} has {found:,} of {rows:,} vectors: the same command with --resume goes on")
        return np.memmap(path, dtype="float16", mode="r", shape=(rows, width)) if rows else np.zeros((0, width), dtype=np.float16)

    @property
    def card(self) -> VectorCard:
        return VectorCard.read(self.folder)

    @property
    def width(self) -> int:
        return self.card.width

    def told(self) -> JsonObject:
        """For the record of a run."""
        return {name: value for name, value in asdict(self.card).items() if name != "blocks"}

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.float16"

    def _rows(self, name: str) -> int:
        return self.files.card.tokenizer["vocab"] if name == VOCABULARY else len(self.files[name])

    def _whole(self, name: str, card: VectorCard) -> int:
        """Rows from the first on whose blocks are as they were written."""
        path, sums = self._path(name), card.blocks.get(name, [])
        if not sums or not path.is_file():
            return 0
        with open(path, "rb") as file:
            whole = next((i for i, wanted in enumerate(sums) if _sum(file.read(BLOCK * 2 * card.width)) != wanted), len(sums))
        return min(whole * BLOCK, self._rows(name))

    def _write(self, card: VectorCard, teacher: Teacher, progress: bool | None) -> None:
        if self._whole(VOCABULARY, card) < self._rows(VOCABULARY):
            words = teacher.vocabulary(self.files.card)
            card = self._write_rows(card, VOCABULARY, lambda rows: words[rows.start : rows.stop], lambda count: None)
        with Progress(progress) as bars:
            for name in self.files.splits:
                with bars.stage(f"the teacher reads {name}", self._rows(name)) as advance:
                    card = self._write_rows(card, name, self._reader(teacher, name), advance)

    def _reader(self, teacher: Teacher, name: str) -> Callable[[range], np.ndarray]:
        split = self.files[name]
        return lambda rows: teacher.vectors([split.row(row) for row in rows])

    def _write_rows(
        self, card: VectorCard, name: str, compute: Callable[[range], np.ndarray], advance: Callable[[int], None]
    ) -> VectorCard:
        begin, total = self._whole(name, card), self._rows(name)
        sums = card.blocks.get(name, [])[: -(-begin // BLOCK)]
        advance(begin)
        with open(self._path(name), "ab") as file:
            file.truncate(begin * 2 * card.width)
            for start in range(begin, total, BLOCK):
                rows, began = range(start, min(start + BLOCK, total)), time.monotonic()
                content = compute(rows).tobytes()
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                sums = [*sums, _sum(content)]
                seconds = card.seconds + (time.monotonic() - began if name != VOCABULARY else 0.0)
                card = replace(card, seconds=seconds, blocks={**card.blocks, name: sums})
                card.write(self.folder)
                advance(len(rows))
        return card


def _sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
