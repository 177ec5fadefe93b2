"""The card of a prepared folder: what is in it, where it came from and how it was made, as JSON.

It holds no times and no absolute paths: the same files and settings give the same card, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tokmix.core.checks import nearest, printable
from tokmix.runs.files import Damaged, JsonObject, check_seal, read_json, seal, sha256_file, write_json
from tokmix.runs.records import check_format, from_json

NAME = "card.json"
FORMAT = "tokmix-tokens"
VERSION = 2  # 1: the same without a checksum
FileFacts = dict[str, object]  # bytes and sha256, in Card.source a name too; of a split on the hub a name and a fingerprint
BY_HASH = "split by a hash"  # how `split_by` begins where `prepare` made the splits


@dataclass
class SplitCard:
    rows: int
    tokens: int
    bytes: int  # of the text, in UTF-8: what bits per byte are divided by
    lengths: JsonObject
    labels: dict[str, int] = field(default_factory=dict)  # class -> rows
    scores: dict[str, float] = field(default_factory=dict)  # min, max, mean, deviation
    truncated: int = 0
    files: dict[str, FileFacts] = field(default_factory=dict)  # name -> bytes, sha256


@dataclass
class Card:
    task: str
    labels: list[str]  # class names in the order of their numbers; empty unless the task is classify or multilabel
    columns: JsonObject
    split_by: str  # how rows came into splits, in words
    tokenizer: JsonObject  # kind, vocab, roles (ids of pad, cls, sep, mask, eot), specials (special tokens in each row)
    stream: bool  # documents of a running text (lm) and not rows with their own special tokens
    max_len: int | None
    dtype: str
    shard_tokens: int
    splits: dict[str, SplitCard]
    overlap: dict[str, int]
    left_out: dict[str, int]
    source: list[FileFacts]  # name, bytes, sha256 of each file read
    settings: dict[str, object]
    warnings: list[str]
    format: str = FORMAT
    version: int = VERSION

    def write(self, folder: Path) -> None:
        write_json(folder / NAME, seal(asdict(self)), ascii=False)

    @classmethod
    def read(cls, folder: Path) -> Card:
        path = folder / NAME
        if not folder.is_dir():
            raise ValueError(f"no folder {str(folder)!r}")
        if not path.is_file():
            raise ValueError(f"{folder} is not a prepared folder: it has no {NAME}")
        known = read_json(path)
        check_format(known, path, FORMAT, (1, VERSION), "token files")
        card = from_json(cls, {name: value for name, value in known.items() if name != "checksum"}, path)
        card._check(path)
        if card.version > 1:
            check_seal(known, path)
        return card

    def _check(self, path: Path) -> None:
        """Whether it can be read from: names of files are names in this folder, sizes are sizes."""
        names = [name for split in self.splits.values() for name in split.files]
        ids = self.tokenizer.get("roles")
        good = all(name not in ("", ".", "..") and Path(name).name == name for name in names)
        good = good and self.dtype in ("uint16", "uint32") and self.shard_tokens > 0 and isinstance(ids, dict)
        vocab = self.tokenizer.get("vocab")
        good = good and isinstance(vocab, int) and all(isinstance(one, int) and 0 <= one < vocab for one in (ids or {}).values())
        good = good and all(isinstance(facts.get("bytes"), int) for split in self.splits.values() for facts in split.files.values())
        if not good:
            raise Damaged(f"{path} is damaged: its files, numbers or special tokens do not fit together")

    def split(self, name: str) -> SplitCard:
        if name not in self.splits:
            raise ValueError(f"no split {name!r}; there are: {', '.join(self.splits)}{nearest(name, self.splits)}")
        return self.splits[name]

    @property
    def labelled_splits(self) -> list[str]:
        """Splits whose rows a final model may learn from. A test split that the user gave (a file, a column) is never among them; one
        that `prepare` cut off itself is, once its figure is known."""
        return [name for name in self.splits if name != "test" or self.split_by.startswith(BY_HASH)]

    def summary(self) -> str:
        """What was made, in a few lines."""
        columns = self.columns
        used = f"text from {' and '.join(columns['text'])}" if columns.get("text") else "plain text"
        used += f", target from {columns['target']}" if columns.get("target") else ""
        lines = [f"task {self.task}: {used}; {self.split_by}"]
        lines.append(
            f"tokenizer {self.tokenizer['kind']}, {self.tokenizer['vocab']:,} ids"
            + (f"; at most {self.max_len} a row" if self.max_len else "")
        )
        unit = "documents" if self.stream else "rows"
        for name, split in self.splits.items():
            lengths = split.lengths
            shown = f"{name:5} {split.rows:>10,} {unit} {split.tokens:>13,} tokens"
            shown += f"  length {lengths['p50']} median, {lengths['p99']} p99, {lengths['max']} max"
            lines.append(shown + (f"  {split.truncated:,} cut" if split.truncated else ""))
        if self.labels:
            counts = self.splits["train"].labels if "train" in self.splits else {}
            lines.append(
                f"{len(self.labels)} classes: "
                + ", ".join(f"{label} {counts.get(label, 0):,}" for label in self.labels[:12])
                + (", ..." if len(self.labels) > 12 else "")
            )
        return printable("\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)]))


def length_facts(counts: Counter[int]) -> dict[str, object]:
    """From how often each length occurs: range, mean, percentiles, and a histogram by powers of two."""
    total = sum(counts.values())
    if not total:
        return {"min": 0, "max": 0, "mean": 0.0, "p50": 0, "p90": 0, "p99": 0, "histogram": {}}
    ordered = sorted(counts)
    facts: dict[str, object] = {"min": ordered[0], "max": ordered[-1]}
    facts["mean"] = round(sum(length * count for length, count in counts.items()) / total, 3)
    for percent in (50, 90, 99):
        facts[f"p{percent}"] = _percentile(ordered, counts, total, percent)
    histogram: Counter[int] = Counter()
    for length, count in counts.items():
        histogram[1 << max(length - 1, 0).bit_length()] += count
    facts["histogram"] = {f"<={edge}": histogram[edge] for edge in sorted(histogram)}
    return facts


def _percentile(ordered: Sequence[int], counts: Counter[int], total: int, percent: int) -> int:
    """The smallest length that at least this share of the rows does not exceed."""
    seen = 0
    for length in ordered:
        seen += counts[length]
        if seen * 100 >= total * percent:
            return length
    return ordered[-1]


def hash_file(path: Path, name: str, advance: Callable[[int], None] = lambda n: None) -> FileFacts:
    size, sha256 = sha256_file(path, advance)
    return {"name": name, "bytes": size, "sha256": sha256}
