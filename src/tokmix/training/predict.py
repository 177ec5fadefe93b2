"""`tokmix predict MODEL TEXT ... | FILE | -`: a label and its probabilities, or a score, for each text.

The other rows of a batch do not change a prediction except by float32 rounding: padding is exact in every mixer.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tokmix.core.checks import at_least, check_text, one_of
from tokmix.core.model import Model
from tokmix.core.optional import np
from tokmix.core.segments import Segments
from tokmix.data.batches.rows import lay_out
from tokmix.data.prepare.rows import text_of
from tokmix.data.prepare.targets import LABELLED
from tokmix.data.read.files import Text, format_of
from tokmix.data.read.lines import decoded, lines
from tokmix.training import model_folder
from tokmix.training.baseline import bag_texts
from tokmix.training.eval_data import table_or_text
from tokmix.training.imports import import_files
from tokmix.training.mixture import BAG
from tokmix.training.model_folder import Trained

if TYPE_CHECKING:
    from tokmix.runtime.model import Answer

TOKENS, GPU_TOKENS = 2048, 8192  # of a batch, padding included: on a CPU few enough for its caches
CHUNK = 4096  # texts read, sorted by length and answered at a time


class Predictor:
    def __init__(self, trained: Trained):
        if trained.task not in LABELLED:
            what = "generate continues a text" if trained.task == "lm" else "eval measures it on data"
            raise ValueError(f"{trained.folder} is a model for {trained.task}, and predict needs classify or regress; {what}")
        self.trained, self.encoder, self.cut = trained, trained.encoder(), 0

    def __call__(self, texts: Iterable[str | tuple[str, ...]]) -> Iterator[Answer]:
        """An answer for each text, in order; for a model of pairs a text is (one, the other)."""
        stream = iter(texts)
        while chunk := [self._row(text) for text in islice(stream, CHUNK)]:
            outputs = self._outputs(chunk)
            for row, output in zip(chunk, outputs, strict=True):
                yield {"text": row[0] if len(row) == 1 else list(row), **self._answer(output)}

    def _row(self, text: str | tuple[str, ...]) -> tuple[str, ...]:
        row = (text,) if isinstance(text, str) else tuple(text)
        wanted = 2 if self.trained.pair else 1
        if len(row) != wanted:
            raise ValueError(f"this model reads {wanted} text{'s' * (wanted > 1)} at a time, not {len(row)}: {' | '.join(row)[:80]!r}")
        for one in row:
            check_text(one)
        return row

    def _outputs(self, rows: Sequence[tuple[str, ...]]) -> torch.Tensor:
        encoded, cut = self.encoder.rows(rows)
        self.cut += len(cut)
        trained = self.trained
        if trained.linear is None:
            return self._network(encoded)
        texts = bag_texts(trained.tokenizer, trained.roles, trained.pair, [ids.tolist() for ids in encoded])
        scores = trained.linear.scores(texts)
        network = np.zeros_like(scores) if trained.mixture.by == BAG else self._network(encoded).numpy()
        return torch.from_numpy(np.asarray(trained.mixture.outputs(network, scores), dtype=np.float32))

    def _network(self, encoded: Sequence[np.ndarray]) -> torch.Tensor:
        return by_length(self.trained.model, encoded, self.trained.model)

    def _answer(self, output: torch.Tensor) -> Answer:
        if self.trained.task == "regress":
            return {"score": float(output)}
        labels = self.trained.labels
        if self.trained.task == "multilabel":
            given = self.trained.mixture.raised(output.numpy()) > 0
            found = {label: float(chance) for label, chance in zip(labels, output.sigmoid(), strict=True)}
            return {"labels": [label for label, one in zip(labels, given, strict=True) if one], "probabilities": found}
        chances = output.softmax(-1).tolist()
        return {"label": labels[int(output.argmax())], "probabilities": dict(zip(labels, chances, strict=True))}


@torch.inference_mode()
def by_length(
    model: Model, encoded: Sequence[np.ndarray], compute: Callable[[torch.Tensor, Segments | None], torch.Tensor]
) -> torch.Tensor:
    """The output of `compute` for each row's ids, in order. Rows of similar length share a batch. If rows of one length fill half of it,
    the batch ends with them, and they need no segments."""
    lengths = np.array([len(ids) for ids in encoded])
    order = np.argsort(lengths, kind="stable")
    device = model.embedding.weight.device
    most = TOKENS if device.type == "cpu" else GPU_TOKENS
    pieces, start = [], 0
    while start < len(order):
        same = np.searchsorted(lengths, lengths[order[start]], side="right", sorter=order)
        stop = start + 1
        while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= most:
            if stop == same and 2 * (stop - start) * lengths[order[start]] >= most:
                break
            stop += 1
        chosen = order[start:stop]
        widths = lengths[chosen]
        ids = np.concatenate([encoded[i] for i in chosen]).astype(np.int64)
        laid = lay_out(ids, widths, int(widths.max()), 0)  # segments mark padding, so its id does not matter
        whole = 0 < widths[0] == widths[-1]
        segments = None if whole else Segments.from_lengths(widths.tolist(), device=device)
        pieces.append(compute(laid.to(device), segments).float().cpu())
        start = stop
    return torch.cat(pieces)[torch.from_numpy(np.argsort(order, kind="stable"))]


def run(
    model: str | Path,
    given: Sequence[str],
    *,
    format: str = "jsonl",
    encoding: str = "utf-8",
    device: str = "cpu",
    imports: Sequence[str | Path] = (),
    top: int | None = None,
) -> int:
    """Print one answer per line -> how many. top: only this many classes, the likeliest first."""
    one_of("format", format, ["jsonl", "table", "csv"])
    if top is not None:
        at_least("top", top, 1)
    import_files(imports)
    predictor = Predictor(model_folder.load(model, device))
    if top is not None and predictor.trained.task == "regress":
        raise ValueError("top names classes, and this model gives a score: leave it out")
    count = 0
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for answer in predictor(read_texts(predictor.trained, given, encoding)):
        if top is not None:
            answer["probabilities"] = dict(sorted(answer["probabilities"].items(), key=lambda item: -item[1])[:top])
        if format == "csv":
            if count == 0:
                writer.writerow(_csv_header(answer, top))
            writer.writerow(_csv_row(answer, top))
        else:
            print(json.dumps(answer, ensure_ascii=False) if format == "jsonl" else _table_row(answer, top))
        count += 1
    if count == 0:
        raise ValueError("there is no text to predict for")
    if predictor.cut:
        print(f"{predictor.cut:,} texts were cut to {predictor.trained.model.config.max_len} tokens", file=sys.stderr)
    return count


def _csv_header(answer: Answer, top: int | None) -> list[str]:
    """The text columns, the answer, and its probability; with top: this many classes and their probabilities."""
    texts = ["text"] if isinstance(answer["text"], str) else ["text1", "text2"]
    if "score" in answer:
        return [*texts, "score"]
    if top is None:
        return [*texts, "labels"] if "labels" in answer else [*texts, "label", "probability"]
    return [*texts, *(f"{what}{i}" for i in range(1, len(answer["probabilities"]) + 1) for what in ("label", "probability"))]


def _csv_row(answer: Answer, top: int | None) -> list[str]:
    texts = [answer["text"]] if isinstance(answer["text"], str) else list(answer["text"])
    if "score" in answer:
        return [*texts, f"{answer['score']:.6g}"]
    if top is not None:
        return [*texts, *(one for label, chance in answer["probabilities"].items() for one in (label, f"{chance:.4f}"))]
    if "labels" in answer:
        return [*texts, "|".join(answer["labels"])]
    return [*texts, answer["label"], f"{answer['probabilities'][answer['label']]:.4f}"]


def _table_row(answer: Answer, top: int | None = None) -> str:
    text = answer["text"] if isinstance(answer["text"], str) else " | ".join(answer["text"])
    shown = " ".join(text.split())
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    if "score" in answer:
        return f"{answer['score']:10.4f}  {shown}"
    if top is not None:
        return "  ".join([*(f"{label} {chance:.4f}" for label, chance in answer["probabilities"].items()), shown])
    if "labels" in answer:
        return f"{', '.join(answer['labels']) or '-':<24} {shown}"
    return f"{answer['label']:<16} {answer['probabilities'][answer['label']]:.4f}  {shown}"


def read_texts(trained: Trained, given: Sequence[str], encoding: str = "utf-8") -> Iterator[str | tuple[str, ...]]:
    """Texts as given, the lines of standard input for '-', or a file: lines of a .txt, the model's text columns of a table.
    In a line, a tab separates the two texts of a pair."""
    if list(given) == ["-"]:
        yield from _lines(trained, decoded(sys.stdin.buffer, "standard input", encoding))
        return
    if len(given) == 1 and _there(Path.is_file, given[0]):
        yield from _file(trained, Path(given[0]), encoding)
        return
    for text in given:
        _check_no_file(text)
    if trained.pair and len(given) == 2 and not any("\t" in text for text in given):
        yield tuple(given)
    else:
        yield from (_parted(trained, text) for text in given)


def _check_no_file(text: str) -> None:
    """Refuse the name of a file among several texts."""
    if text == "-":
        raise ValueError("'-' is standard input, a text a line, and no other text can be given beside it")
    if _there(Path.is_file, text):
        raise ValueError(f"{text!r} is a file, and a file is given alone; as a text it can be given on standard input, with -")
    if _there(Path.is_dir, text):
        raise ValueError(f"{text!r} is a folder: give a file in it, or the text on standard input, with -")
    if " " not in text and format_of(Path(text)) is not None:
        raise ValueError(f"no file {text!r}; a text that reads like a file's name can be given on standard input, with -")


def _there(kind: Callable[[Path], bool], text: str) -> bool:
    try:
        return kind(Path(text)) and bool(text)
    except (OSError, ValueError):  # longer than a name can be, or with letters that no name has: a text
        return False


def _lines(trained: Trained, numbered: Iterable[tuple[int, str]]) -> Iterator[str | tuple[str, ...]]:
    """Skip blank lines, and print how many: answers then do not match line numbers."""
    blank = 0
    for _, line in numbered:
        if line.strip():
            yield _parted(trained, line.rstrip("\r\n"))
        else:
            blank += 1
    if blank:
        print(f"blank lines left out: {blank:,}", file=sys.stderr)


def _parted(trained: Trained, line: str) -> str | tuple[str, ...]:
    return tuple(line.split("\t", 1)) if trained.pair else line


def _file(trained: Trained, path: Path, encoding: str) -> Iterator[str | tuple[str, ...]]:
    part = table_or_text(trained, path, encoding)
    if isinstance(part, Text):
        yield from _lines(trained, lines(path, encoding))
        return
    columns = list(trained.about.columns.text)
    for number, values in part.rows(columns):
        texts = tuple(text_of(part, number, column, value) for column, value in zip(columns, values, strict=True))
        yield texts if trained.pair else texts[0]
