"""Token files on disk: read by memory map, so that nothing has to fit in memory.

train-00000.tokens.bin    ids, one after another (uint16, or uint32 for a large vocabulary); shards of a fixed number of ids
train-00001.tokens.bin
train.offsets.bin         int64 [rows + 1]: row r is ids[offsets[r] : offsets[r + 1]], counted over all shards
train.targets.bin         int32 class numbers or float32 scores [rows], uint8 [rows, classes] of multilabel; absent where there are none
train.keys.bin            uint64 [rows]: the hash of each row's text (see split.py)
train.groups.bin          uint64 [rows]: the hash of each row's group; absent where no groups were asked for
train.weights.bin         float32 [rows]: each row's weight in the loss; absent where all weigh the same
tokenizer.json, card.json
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokmix.core.optional import np
from tokmix.data.card import FORMAT, NAME, Card
from tokmix.runs.files import Damaged, read_json, sha256_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_VERIFIED: set[tuple[object, ...]] = set()  # files whose hash this process has compared, in the state they were in
TARGETS = {"classify": "int32", "multilabel": "uint8", "regress": "float32"}


def shard_name(split: str, index: int) -> str:
    return f"{split}-{index:05d}.tokens.bin"


def runs(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Whole numbers from each start on, as many as its length, end to end. [R], [R] -> [sum of lengths]"""
    return np.arange(int(lengths.sum())) + np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)


class TokenSplit:
    """Rows of one split by number. Opens its files on first use; pickles as its path."""

    def __init__(self, folder: Path, name: str, card: Card):
        self.folder, self.name, self.card, self.facts = folder, name, card, card.split(name)
        self.shard_tokens = card.shard_tokens
        self._maps: dict[str, np.ndarray] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return TokenSplit, (self.folder, self.name, self.card)

    def __len__(self) -> int:
        return self.facts.rows

    @property
    def tokens(self) -> int:
        return self.facts.tokens

    @property
    def offsets(self) -> np.ndarray:
        return self._map(f"{self.name}.offsets.bin", "int64")  # [rows + 1]

    @property
    def keys(self) -> np.ndarray:
        return self._map(f"{self.name}.keys.bin", "uint64")  # [rows]

    @property
    def groups(self) -> np.ndarray:
        """Keys of rows that stay in one split: their groups if there are any, else their texts."""
        file = f"{self.name}.groups.bin"
        return self._map(file, "uint64") if file in self.facts.files else self.keys  # [rows]

    @property
    def weights(self) -> np.ndarray | None:
        """Each row's weight in the loss; None if all are equal."""
        file = f"{self.name}.weights.bin"
        return self._map(file, "float32") if file in self.facts.files else None  # [rows]

    @property
    def targets(self) -> np.ndarray | None:
        dtype = TARGETS.get(self.card.task)
        if dtype is None:
            return None
        found = self._map(f"{self.name}.targets.bin", dtype)
        return found.reshape(len(self), -1) if self.card.task == "multilabel" else found  # [rows], [rows, classes]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        return self.offsets[rows + 1] - self.offsets[rows]

    def row(self, index: int) -> np.ndarray:
        """The ids of one row. [length] int64"""
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.read(int(self.offsets[index]), int(self.offsets[index + 1]))

    def rows(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids of some rows end to end [N] int64, and the rows' lengths."""
        starts, lengths = self.offsets[rows], self.lengths(rows)
        return self.at(runs(starts, lengths)), lengths

    def at(self, places: np.ndarray) -> np.ndarray:
        """The ids at some places of all rows laid end to end. [N] int64"""
        shards = places // self.shard_tokens
        if len(places) == 0 or shards.min() == shards.max():
            return self._shard(int(shards[0]) if len(places) else 0)[places % self.shard_tokens].astype(np.int64)
        found = np.empty(len(places), dtype=np.int64)
        for shard in np.unique(shards).tolist():
            mine = shards == shard
            found[mine] = self._shard(shard)[places[mine] % self.shard_tokens]
        return found

    def _shard(self, number: int) -> np.ndarray:
        return self._map(shard_name(self.name, number), self.card.dtype)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Ids start to stop of all rows laid end to end. [stop - start] int64"""
        pieces = []
        while start < stop:
            shard, begin = divmod(start, self.shard_tokens)
            end = min(self.shard_tokens, begin + stop - start)
            pieces.append(self._shard(shard)[begin:end].astype(np.int64))
            start += end - begin
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, dtype=np.int64), *pieces])

    def _map(self, file: str, dtype: str) -> np.ndarray:
        if file not in self._maps:
            path = self.folder / file
            # An empty file cannot be mapped; a plain view of the map is quicker to index than the map.
            self._maps[file] = np.asarray(np.memmap(path, dtype=dtype, mode="r")) if path.stat().st_size else np.zeros(0, dtype=dtype)
        return self._maps[file]


class TokenFiles:
    """A prepared folder: `files["train"]` gives a split. Opening checks the card and every file's size; `verify` every byte."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        self.card = Card.read(self.folder)
        for name in [file for split in self.card.splits.values() for file in split.files] + ["tokenizer.json"]:
            if not (self.folder / name).is_file():
                raise ValueError(f"{self.folder} is damaged: {name} is missing")
        for split in self.card.splits.values():
            for name, facts in split.files.items():
                size = (self.folder / name).stat().st_size
                if size != facts["bytes"]:
                    raise ValueError(f"{self.folder} is damaged: {name} has {size:,} bytes, not {facts['bytes']:,}")
        for name in self.card.splits:
            offsets = self[name].offsets
            if len(offsets) != len(self[name]) + 1 or offsets[0] != 0 or offsets[-1] != self[name].tokens:
                raise ValueError(f"{self.folder} is damaged: {name}.offsets.bin does not fit {name}'s tokens")

    @property
    def splits(self) -> list[str]:
        return list(self.card.splits)

    def __contains__(self, name: str) -> bool:
        return name in self.card.splits

    def __getitem__(self, name: str) -> TokenSplit:
        return TokenSplit(self.folder, name, self.card)

    def tokenizer(self) -> Tokenizer:
        from tokmix.data.prepare.tokenize import load_tokenizer

        return load_tokenizer(self.folder / "tokenizer.json")

    def verify(self) -> None:
        """Read everything once and compare hashes. Unchanged files that this process has already checked are skipped."""
        known = {name: facts["sha256"] for split in self.card.splits.values() for name, facts in split.files.items()}
        for name, sha256 in [*known.items(), ("tokenizer.json", self.card.tokenizer["sha256"])]:
            path = (self.folder / name).resolve()
            stat = path.stat()
            state = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, sha256)
            if state not in _VERIFIED:
                if sha256_file(path)[1] != sha256:
                    raise Damaged(f"{self.folder} is damaged: the content of {name} has changed")
                _VERIFIED.add(state)


def is_prepared(folder: str | Path) -> bool:
    """Whether this is a folder written by `prepare` (and not, say, one with data to prepare)."""
    try:
        return read_json(Path(folder) / NAME).get("format") == FORMAT
    except (OSError, ValueError):
        return False
