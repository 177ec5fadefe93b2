"""The teacher's vectors, computed once and kept beside the token files.

    teacher/train.float16       a vector for each row, in the order of the rows; a run that was stopped goes on behind the last one
    teacher/vocabulary.float16  a vector for each token of the vocabulary, read alone: the student's embedding starts there
    teacher/card.json           which teacher, the width of its vectors, and what reading cost

A vector is the mean over the last layer's tokens, scaled to length 1, as sentence-transformers has it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from tokmix.core.optional import need, np
from tokmix.core.segments import Segments
from tokmix.data.batches.rows import lay_out
from tokmix.data.card import Card
from tokmix.data.prepare.tokenize import load_tokenizer
from tokmix.data.tokens import TokenFiles, TokenSplit
from tokmix.runs.files import JsonObject, read_json, sha256_file, write_json
from tokmix.show.progress import Progress

FOLDER, CARD = "teacher", "card.json"
BLOCK = 4096  # rows that are computed, sorted by length, and written together
TOKENS = 4096  # of a batch


class Teacher:
    """A folder of a sentence encoder as save_pretrained and sentence-transformers write it."""

    def __init__(self, folder: str | Path, device: torch.device, half: bool = False):
        self.folder, self.device = Path(folder), device
        check(self.folder)
        transformers = need("transformers", "a teacher")
        model = transformers.AutoModel.from_pretrained(self.folder, local_files_only=True).eval().requires_grad_(False)
        self.model = model.to(device, torch.bfloat16 if half else torch.float32)
        self.width = int(self.model.config.hidden_size)
        words = self.model.get_input_embeddings().weight.numel()
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters()) - words  # a token is multiplied with each

    def card(self) -> JsonObject:
        return {"name": self.folder.name, "sha256": sha256_file(self.folder / "config.json")[1]}

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


class Vectors:
    """The vectors beside a prepared folder: `make` computes what is missing."""

    def __init__(self, files: TokenFiles):
        self.files, self.folder = files, files.folder / FOLDER

    def make(self, teacher: str, device: torch.device, progress: bool | None = None) -> None:
        check(Path(teacher))
        check_tokenizer(teacher, self.files)
        card: JsonObject = {"name": Path(teacher).name, "sha256": sha256_file(Path(teacher) / "config.json")[1], "seconds": 0.0}
        if (self.folder / CARD).is_file():
            if self.card["sha256"] != card["sha256"]:
                raise ValueError(f"{self.folder} holds the vectors of another teacher than {teacher}: remove it, or name that teacher")
            if all(len(self._known(name)) == len(self.files[name]) for name in self.files.splits) and self._known("vocabulary").size:
                return
            card = self.card
        model = Teacher(teacher, device)
        self.folder.mkdir(exist_ok=True)
        tokens = sum(self.files[name].tokens for name in self.files.splits)
        card |= {"width": model.width, "tokens": tokens, "flops": 2 * model.parameters * tokens}
        write_json(self.folder / CARD, card)
        with Progress(progress) as bars:
            self._write_vocabulary(model)
            for name in self.files.splits:
                self._write_rows(model, self.files[name], bars, card)

    def of(self, name: str) -> np.ndarray:
        """[rows of the split, width] float16; "vocabulary": [tokens, width]"""
        rows = self.files.card.tokenizer["vocab"] if name == "vocabulary" else len(self.files[name])
        found = self._known(name)
        if len(found) != rows:
            raise ValueError(f"{self._path(name)} has {len(found):,} of {rows:,} vectors: the same command with --resume goes on")
        return found

    @property
    def card(self) -> JsonObject:
        return read_json(self.folder / CARD)

    @property
    def width(self) -> int:
        return int(self.card["width"])

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.float16"

    def _known(self, name: str) -> np.ndarray:
        path, width = self._path(name), self.width
        rows = path.stat().st_size // (2 * width) if path.is_file() else 0
        return np.memmap(path, dtype="float16", mode="r", shape=(rows, width)) if rows else np.zeros((0, width), dtype=np.float16)

    def _write_vocabulary(self, teacher: Teacher) -> None:
        if len(self._known("vocabulary")) != self.files.card.tokenizer["vocab"]:
            self._path("vocabulary").write_bytes(teacher.vocabulary(self.files.card).tobytes())

    def _write_rows(self, teacher: Teacher, split: TokenSplit, bars: Progress, card: JsonObject) -> None:
        begin, size = len(self._known(split.name)), 2 * teacher.width
        with bars.stage(f"the teacher reads {split.name}", len(split)) as advance, open(self._path(split.name), "ab") as file:
            file.truncate(begin * size)  # half a vector, where a run was stopped while it wrote
            advance(begin)
            for start in range(begin, len(split), BLOCK):
                rows, began = range(start, min(start + BLOCK, len(split))), time.monotonic()
                file.write(teacher.vectors([split.row(row) for row in rows]).tobytes())
                file.flush()
                card["seconds"] += time.monotonic() - began
                write_json(self.folder / CARD, card)
                advance(len(rows))
