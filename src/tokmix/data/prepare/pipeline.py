"""Text -> token files: look through the data, train a tokenizer, write ids. Each is a pass over the files, streamed.

prepare("reviews.csv", "prepared")  ->  Card, and the folder `prepared`
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tokmix.core.optional import np
from tokmix.data.card import Card, FileFacts, SplitCard, hash_file
from tokmix.data.order import mix
from tokmix.data.prepare import label_report
from tokmix.data.prepare.documents import Piece
from tokmix.data.prepare.plan import Plan
from tokmix.data.prepare.rows import LeftOut
from tokmix.data.prepare.settings import PrepareSettings
from tokmix.data.prepare.targets import LABELLED
from tokmix.data.prepare.tokenize import KINDS, Encoder, batched, load_tokenizer, make_ready, train_tokenizer, vocab_size
from tokmix.data.prepare.write import SplitWriter
from tokmix.data.read.files import Delimited, Part, Text, open_source
from tokmix.data.read.hub import is_saved
from tokmix.data.split import SPLITS, overlap, shared
from tokmix.data.tokens import TokenSplit
from tokmix.runs.files import check_free, new_folder, write_text
from tokmix.show.progress import Progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_CHARACTERS = 200_000_000  # a tokenizer learns from about this much of train; more changes little and costs memory
UNKNOWN = 0.1  # a share of unknown tokens that is worth a warning
BATCH_CHARACTERS = 2**18  # encoded at once; a token costs its encoding some hundred bytes


def prepare(source: str | Path, out: str | Path, *, progress: bool | None = None, **settings: object) -> Card:
    """Write the token files of `source` into the new folder `out`. Settings: see PrepareSettings. ValueError for bad input."""
    asked = PrepareSettings.of(**settings)
    check_free(Path(out))
    if Path(source).is_dir() and Path(out).resolve().is_relative_to(Path(source).resolve()):
        raise ValueError(f"{out} lies in {source} and would be read as data the next time: name a folder outside of it")
    plan = plan_of(source, asked)
    with Progress(progress) as bars:
        with bars.stage("looking") as advance:
            plan.look(advance)
        with new_folder(Path(out)) as folder:
            card = _write(plan, folder, bars)
            card.write(folder)
    return card


def source_facts(source: str | Path, **settings: object) -> list[FileFacts]:
    """What a card of this data, prepared with these settings, says about the files: `Card.source`."""
    with Progress(None) as bars:
        return _source(plan_of(source, PrepareSettings.of(**settings)), bars)


def plan_of(source: str | Path, asked: PrepareSettings) -> Plan:
    """The columns and splits of this data; what its rows hold is not looked at yet."""
    parts = _opened(source, asked)
    _refuse_unused(Path(source), parts, asked)
    if asked.test_file is not None:
        if any(part.split in ("valid", "test") for part in parts) or asked.valid or asked.test:
            raise ValueError(f"test_file={asked.test_file!r} is the test split, and {source} has splits of its own: give one of them")
        others = _opened(asked.test_file, asked)
        for one, split in [*((part, "train") for part in parts), *((part, "test") for part in others)]:
            one.split = split
        parts = [*parts, *others]
    return Plan(parts, asked)


def _opened(source: str | Path, asked: PrepareSettings) -> list[Part]:
    header = [name.strip() for name in asked.header.split(",")] if asked.header else None
    return open_source(
        source, format=asked.format, pattern=asked.pattern, header=header, encoding=asked.encoding, subset=asked.subset, task=asked.task,
        separator=asked.separator, sheet=asked.sheet,
    )  # fmt: skip


def _refuse_unused(source: Path, parts: Sequence[Part], asked: PrepareSettings) -> None:
    """What was said and says nothing about data of this kind was meant for other data."""
    here = "file" if source.is_file() else "folder" if source.exists() else ""
    if asked.subset is not None and here:
        raise ValueError(f"subset={asked.subset!r} names a configuration of a data set on the hub, and {source} is a {here}")
    if asked.pattern is not None and (here != "folder" or is_saved(source)):
        raise ValueError(f"pattern={asked.pattern!r} says which files of a folder are read, and {source} is {_kind(here)}")
    if asked.header is not None and not any(isinstance(part, Delimited) for part in parts):
        raise ValueError(f"header={asked.header!r} names the columns of csv and tsv, and {parts[0].name} is neither")
    if asked.separator is not None and not any(isinstance(part, Delimited) for part in parts):
        raise ValueError(f"separator={asked.separator!r} parts the cells of csv, and {parts[0].name} is none")
    if asked.sheet is not None and not hasattr(parts[0], "sheet"):
        raise ValueError(f"sheet={asked.sheet!r} names a sheet of .xlsx or a table of SQLite, and {parts[0].name} is neither")
    if isinstance(parts[0], Text):
        for name in ("text", "label", "split_column", "group", "weight"):
            if (column := getattr(asked, name)) is not None:
                raise ValueError(f"{name}={column!r} names a column, and {parts[0].name} is plain text, which has none")


def _kind(here: str) -> str:
    return {"file": "a file", "folder": "a saved data set"}.get(here, "a data set on the hub")


def _write(plan: Plan, folder: Path, bars: Progress) -> Card:
    asked = plan.asked
    kind, tokenizer = _tokenizer(plan, bars)
    roles = make_ready(tokenizer, plan.task, plan.pair)
    write_text(folder / "tokenizer.json", tokenizer.to_str(pretty=True))
    vocab = vocab_size(tokenizer)
    dtype = "uint16" if vocab <= 2**16 else "uint32"
    left_out = LeftOut()
    with contextlib.ExitStack() as stack:
        groups, weights = asked.group is not None, asked.weight is not None
        writers = {name: SplitWriter(folder, name, plan.task, dtype, asked.shard_tokens, groups, weights) for name in SPLITS}
        for writer in writers.values():
            stack.callback(writer.abandon)
        if plan.stream:
            _write_documents(plan, writers, Encoder(tokenizer), roles["eot"], left_out, bars)
        else:
            _write_rows(plan, writers, Encoder(tokenizer, plan.max_len), left_out, bars)
        splits = {name: writer.close() for name, writer in writers.items()}
    specials = 0 if plan.stream else tokenizer.num_special_tokens_to_add(plan.pair)
    sha256 = hash_file(folder / "tokenizer.json", "")["sha256"]
    card = Card(
        task=plan.task,
        labels=plan.labels,
        columns={} if plan.columns is None else asdict(plan.columns),
        split_by=plan.split_by(),
        tokenizer={"kind": kind, "vocab": vocab, "roles": roles, "specials": specials, "sha256": sha256},
        stream=plan.stream,
        max_len=None if plan.stream else plan.max_len,
        dtype=dtype,
        shard_tokens=asked.shard_tokens,
        splits=splits,
        overlap={},
        left_out=left_out.counts,
        source=_source(plan, bars),
        settings={
            **asdict(asked),
            "tokenizer": kind,
            "test_file": None if asked.test_file is None else Path(asked.test_file).name,
        },  # a name, not a path: the card is the same wherever the file stood
        warnings=plan.warnings,
    )
    _drop_empty(plan, card, folder)
    for name, split in card.splits.items():
        _describe_targets(split, TokenSplit(folder, name, card))
    if not asked.labels:
        if kind in KINDS:  # with a tokenizer that is there already, rows may be prepared to measure on
            label_report.check_train(card)
        card.warnings += label_report.about_rows(card, {name: TokenSplit(folder, name, card) for name in card.splits})
    card.overlap = overlap({name: TokenSplit(folder, name, card).keys for name in card.splits})
    card.warnings += [*_warnings(plan, card, left_out), *_parted_groups(plan, card, folder), *_unknown(card, folder)]
    if plan.stream and _forgets(tokenizer):
        card.warnings.append(
            f"the tokenizer, {kind}, keeps not all of a text (letter case, spaces, rare letters): bits per byte of models on it are "
            "lower than those of others, and cannot be compared; tokenizer=bpe or bytes keeps everything"
        )
    return card


def _forgets(tokenizer: Tokenizer) -> bool:
    """Whether a text is not what comes back from its ids."""
    text = "Ab é\n  ab\t中 🙂"
    return bool(tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) != text)


def _tokenizer(plan: Plan, bars: Progress) -> tuple[str, Tokenizer]:
    """The tokenizer taken, or one trained on the training split alone."""
    kind = plan.asked.tokenizer or ("bpe" if plan.task == "lm" else "wordpiece")
    if kind not in KINDS:
        return Path(kind).name, load_tokenizer(kind)
    sampled = min(1.0, TOKENIZER_CHARACTERS / plan.characters_seen)

    def texts() -> Iterator[str]:
        with bars.stage(f"training {kind}", plan.characters_seen) as advance:
            for split, key, row in plan.texts():
                advance(sum(map(len, row)))
                if split == (plan.asked.into or "train") and (sampled >= 1 or int(mix(key, 1)) < sampled * 2**64):
                    yield from row

    # Whole words are better if a few of them decide a row: docs/lab.md.
    vocab = plan.asked.vocab or (8192 if plan.task == "lm" else 16384)
    return kind, train_tokenizer(kind, texts, vocab, plan.asked.lowercase)


def _write_rows(plan: Plan, writers: dict[str, SplitWriter], encoder: Encoder, left_out: LeftOut, bars: Progress) -> None:
    numbers = {label: i for i, label in enumerate(plan.labels)}
    with bars.stage("writing ids", plan.rows_seen) as advance:
        for batch in batched(plan.examples(left_out), BATCH_CHARACTERS, lambda row: 100 + sum(map(len, row.texts))):
            encoded, cut = encoder.rows([row.texts for row in batch])
            if cut and plan.asked.long == "refuse":
                raise ValueError(f"{batch[cut[0]].where}: longer than max_len={plan.max_len} tokens, and long=refuse")
            for row, ids in zip(batch, encoded, strict=True):
                writer = writers[row.split]
                writer.extend(ids)
                writer.bytes += sum(len(text.encode()) for text in row.texts)
                writer.end_row(row.key, _numbers(plan, row.target, numbers), row.group, row.weight)
            for i in cut:
                writers[batch[i].split].truncated += 1
            advance(len(batch))


def _numbers(plan: Plan, target: str | None, numbers: dict[str, int]) -> list[float]:
    """What is written as a row's target: its class, its score, or 0 or 1 for each class."""
    if plan.task not in LABELLED:
        return []
    assert target is not None
    if plan.task == "regress":
        return [float(target)]
    found = [numbers[label] for label in plan.labels_of(target)]
    if plan.task == "classify":
        return list(map(float, found))
    given = [0.0] * len(numbers)
    for place in found:
        given[place] = 1.0
    return given


def _write_documents(plan: Plan, writers: dict[str, SplitWriter], encoder: Encoder, eot: int, left_out: LeftOut, bars: Progress) -> None:
    end = np.array([eot], dtype=np.uint32)
    begun: dict[str, Piece] = {}  # split -> the first piece of the document that is being written there

    def close(split: str) -> None:
        if split in begun:
            writers[split].extend(end)
            first = begun.pop(split)
            writers[split].end_row(first.key, group=first.group)

    with bars.stage("writing ids", plan.characters_seen) as advance:
        for batch in batched(plan.documents(left_out), BATCH_CHARACTERS, lambda piece: len(piece.text)):
            for piece, ids in zip(batch, encoder.documents([piece.text for piece in batch]), strict=True):
                if piece.first:
                    close(piece.split)
                    begun[piece.split] = piece
                writers[piece.split].extend(ids)
                writers[piece.split].bytes += len(piece.text.encode())
                advance(len(piece.text))
    for split in list(begun):
        close(split)


def _source(plan: Plan, bars: Progress) -> list[FileFacts]:
    total = sum(path.stat().st_size for part in plan.parts for path in part.paths)
    found: list[FileFacts] = []
    with bars.stage("hashing the source", total) as advance:
        for part in plan.parts:
            found += [hash_file(path, part.name, advance) for path in part.paths]
            if not part.paths:  # a split of a hub data set
                found.append({"name": part.name, "fingerprint": part.fingerprint()})
    return found


def _drop_empty(plan: Plan, card: Card, folder: Path) -> None:
    shares = {"train": 1.0, "valid": plan.valid, "test": plan.test}
    for name in [name for name in SPLITS if card.splits[name].rows == 0]:
        for file in card.splits.pop(name).files:
            (folder / file).unlink()
        if plan.by_hash and name == "train":
            raise ValueError(f"nothing is left to train on: too little text for valid={plan.valid:g} and test={plan.test:g}")
        if plan.by_hash and shares[name]:
            card.warnings.append(f"no {name} split: too little text for a share of {shares[name]:g}")


def _describe_targets(split: SplitCard, rows: TokenSplit) -> None:
    targets, labels = rows.targets, rows.card.labels
    if targets is None:
        return
    if labels:
        counts = np.bincount(targets, minlength=len(labels)) if targets.ndim == 1 else targets.sum(0)  # [classes]
        split.labels = {label: int(count) for label, count in zip(labels, counts, strict=True)}
    else:
        values = np.asarray(targets, dtype=np.float64)
        split.scores = {
            "min": float(values.min()),
            "max": float(values.max()),
            "mean": float(values.mean()),
            "deviation": float(values.std()),
        }


def _warnings(plan: Plan, card: Card, left_out: LeftOut) -> Iterator[str]:
    unit = "documents" if card.stream else "rows"
    for pair, count in card.overlap.items():
        if count:
            later, _, earlier = pair.split()
            share = _percent(count / card.splits[later].rows)
            yield f"{count:,} {unit} of {later} ({share}) have a text that is in {earlier} too"
    for name, split in card.splits.items():
        if split.truncated:
            share = _percent(split.truncated / split.rows)
            yield f"{split.truncated:,} rows of {name} ({share}) were cut to max_len={card.max_len} tokens"
    if left_out.counts:
        yield f"left out: {left_out}"
    if "train" in card.splits and not plan.asked.labels:
        absent = [label for label, count in card.splits["train"].labels.items() if count == 0]
        yield from (f"label {label!r} has no row in train" for label in absent[:5])
        if len(absent) > 5:
            yield f"{len(absent) - 5:,} more labels have no row in train"


def _parted_groups(plan: Plan, card: Card, folder: Path) -> Iterator[str]:
    """Splits that are given are kept, whatever groups were asked for."""
    if not plan.given or plan.asked.group is None:
        return
    count = shared({name: TokenSplit(folder, name, card).groups for name in card.splits})
    if count:
        yield (
            f"{count:,} values of {plan.asked.group} are in more than one split: splits that are given are kept; "
            f"resplit=true splits by {plan.asked.group} instead"
        )


def _percent(share: float) -> str:
    """Two digits, and a third where two would round up to 1e+02."""
    return f"{100 * share:.{3 if share >= 0.99 else 2}g} %"


def _unknown(card: Card, folder: Path) -> Iterator[str]:
    """Rows that are all alike to the tokenizer teach nothing, which nobody would see."""
    for name, split in card.splits.items():
        ids = TokenSplit(folder, name, card).read(0, min(split.tokens, 2**20))
        share = float((ids == card.tokenizer["roles"].get("unk", -1)).mean()) if len(ids) else 0.0
        if share > UNKNOWN:
            why = "letters it does not know, or words of more than 100 (as where no spaces are written)"
            yield f"{_percent(share)} of {name}'s tokens are unknown: {why}; tokenizer=bpe leaves nothing unknown"
