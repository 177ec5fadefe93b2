"""A model that takes texts, computed by onnxruntime or torch: the result of `tokmix.runtime.load`, also used by `tokmix serve`.

The other rows of a batch do not change an answer except by float32 rounding: padding is exact in every mixer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict

from tokmix.core.checks import check_text
from tokmix.core.optional import np
from tokmix.runtime import bag, states, tokenizer
from tokmix.runtime.folder import Manifest
from tokmix.runtime.sampling import Sampling, choose
from tokmix.runtime.text import TextStream

Text = str | tuple[str, ...]


class Answer(TypedDict, total=False):
    """One line of `tokmix predict`: label or labels with probabilities, or score."""

    text: str | list[str]
    label: str
    labels: list[str]
    probabilities: dict[str, float]
    score: float


class Outputs(NamedTuple):
    outputs: np.ndarray | None  # [N, classes] or [N]; None for a model that only embeds
    pooled: np.ndarray  # [N, D]
    cut: list[bool]  # whether a text was cut to the model's length
    tokens: list[int]  # how many tokens each text has


class TextModel(ABC):
    """A subclass writes `_run` and `_step`."""

    engine: str  # what computes
    tokens = 8192  # of a batch, padding included
    shortest = 1  # columns of a batch

    def __init__(self, folder: str | Path, about: Manifest):
        self.folder, self.about = Path(folder), about
        self.tokenizer = tokenizer.load(self.folder, about.max_len if about.truncate else None)
        self.bag = bag.load(self.folder) if about.blend is not None else None

    @abstractmethod
    def _run(self, ids: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """ids [B, T] int64, mask [B, T] bool -> (outputs [B, ...] or None, pooled [B, D])"""

    @abstractmethod
    def _step(self, ids: np.ndarray, mask: np.ndarray, state: states.State) -> tuple[np.ndarray, states.State]:
        """The next tokens of each row -> (logits after its last one [B, vocab], new state)"""

    # --- rows: classify, regress, embed ------------------------------------------------------------------------------

    def predict(self, texts: Sequence[Text]) -> list[str] | list[float] | list[list[str]]:
        """The label of each text, its labels where a text has several, or its score."""
        outputs = self._answers_to(texts)
        if self.about.task == "regress":
            return [float(score) for score in outputs]
        if self.about.task == "multilabel":
            return [self._labels(row) for row in outputs]
        return [self.about.labels[int(i)] for i in outputs.argmax(-1)]

    def predict_proba(self, texts: Sequence[Text]) -> np.ndarray:
        """Probabilities [N, classes], in the order of `about.labels`."""
        if self.about.task not in ("classify", "multilabel"):
            raise ValueError(f"{self.folder} is a model for {self.about.task}, and predict_proba needs one for classify")
        return self._chances(self._answers_to(texts))

    def answers(self, texts: Sequence[Text]) -> list[Answer]:
        """Answers in the form of `tokmix predict`."""
        shown = [text if isinstance(text, str) else list(text) if len(text) > 1 else text[0] for text in texts]
        return [{"text": text, **said} for text, said in zip(shown, self.said(self._answers_to(texts)), strict=True)]

    def said(self, outputs: np.ndarray) -> list[Answer]:
        """Answers of many rows at once, without their texts."""
        if self.about.task == "regress":
            return [{"score": score} for score in outputs.tolist()]
        names = self.about.labels
        chances = [dict(zip(names, row, strict=True)) for row in self._chances(outputs).tolist()]
        if self.about.task == "multilabel":
            return [{"labels": self._labels(row), "probabilities": known} for row, known in zip(outputs, chances, strict=True)]
        return [{"label": names[best], "probabilities": known} for best, known in zip(outputs.argmax(-1).tolist(), chances, strict=True)]

    def _chances(self, outputs: np.ndarray) -> np.ndarray:
        return softmax(outputs) if self.about.task == "classify" else sigmoid(outputs)

    def _labels(self, output: np.ndarray) -> list[str]:
        """The labels of a text that may have several: those above their thresholds."""
        least = self.about.thresholds or [0.5] * len(self.about.labels)
        raised = output - np.log(np.clip(least, 1e-6, 1 - 1e-6) / (1 - np.clip(least, 1e-6, 1 - 1e-6)))
        return [label for label, one in zip(self.about.labels, raised, strict=True) if one > 0]

    def embed(self, texts: Sequence[Text]) -> np.ndarray:
        """A vector a text [N, D]: the mean of its tokens' last states."""
        if self.about.task == "lm":
            raise ValueError(f"{self.folder} is a language model, and embed needs one for classify, regress or mlm")
        return self.run(self.rows(texts)).pooled

    def _answers_to(self, texts: Sequence[Text]) -> np.ndarray:
        if self.about.task not in ("classify", "multilabel", "regress"):
            raise ValueError(f"{self.folder} is a model for {self.about.task}, and predict needs one for classify or regress")
        outputs = self.run(self.rows(texts)).outputs
        assert outputs is not None
        return outputs

    def rows(self, texts: Sequence[Text]) -> list[tuple[str, ...]]:
        """Checked texts for the model: one per row, or two for a model of pairs."""
        if isinstance(texts, str):
            raise ValueError(f"texts should be a list of texts, not one text; give [{texts[:40]!r}]")
        return [self.row(text) for text in texts]

    def row(self, text: Text) -> tuple[str, ...]:
        row = (text,) if isinstance(text, str) else tuple(text)
        wanted = 2 if self.about.pair else 1
        if len(row) != wanted:
            raise ValueError(f"this model reads {wanted} text{'s' * (wanted > 1)} at a time, not {len(row)}")
        for one in row:
            check_text(one)
        return row

    def run(self, rows: Sequence[tuple[str, ...]]) -> Outputs:
        """Run all rows, sorted by length to reduce padding, in batches of at most `tokens`."""
        if not rows:
            shape = (0,) if self.about.task == "regress" else (0, len(self.about.labels))
            return Outputs(np.zeros(shape, np.float32), np.zeros((0, self.about.dim), np.float32), [], [])
        encoded, cut = self._ids(rows)
        lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
        order, pieces, start = np.argsort(lengths, kind="stable"), [], 0
        while start < len(order):
            stop = start + 1
            while stop < len(order) and (stop + 1 - start) * lengths[order[stop]] <= self.tokens:
                stop += 1
            pieces.append(self._run(*padded([encoded[i] for i in order[start:stop]], self.about.roles["pad"], self.shortest)))
            start = stop
        back = np.argsort(order, kind="stable")
        outputs = None if pieces[0][0] is None else np.concatenate([part for part, _ in pieces if part is not None])[back]
        if self.bag is not None and self.about.blend is not None and outputs is not None:
            outputs = self.about.blend(outputs, self.bag.scores([self._bag_row(ids.tolist()) for ids in encoded]))
        short = set(cut)
        pooled = np.concatenate([part for _, part in pieces])[back]
        return Outputs(outputs, pooled, [i in short for i in range(len(encoded))], lengths.tolist())

    def _ids(self, rows: Sequence[tuple[str, ...]]) -> tuple[list[np.ndarray], list[int]]:
        """The ids of each row as in training, and which rows were cut."""
        if self.about.task != "mlm" or self.about.truncate:
            return self.tokenizer.rows(rows)
        # Plain text has no special token but the end of the document before.
        start, limit = [self.about.roles["eot"]], self.about.limit
        whole = [np.concatenate([start, ids]) for ids in self.tokenizer.documents([row[0] for row in rows])]
        return [ids[:limit] for ids in whole], [i for i, ids in enumerate(whole) if limit is not None and len(ids) > limit]

    def _bag_row(self, ids: list[int]) -> bag.Row:
        """The text (or two) for the bag of words, cut like the network's input."""
        if not self.about.pair:
            return self.tokenizer.decode(ids)
        ends = self.about.roles["sep"]
        cut = ids.index(ends) if ends in ids else len(ids)
        return self.tokenizer.decode(ids[:cut]), self.tokenizer.decode(ids[cut:])

    # --- language models ---------------------------------------------------------------------------------------------

    def prompt(self, text: str, max_new: int) -> tuple[list[int], int]:
        """The ids of the prompt, and how many new tokens fit."""
        if self.about.task != "lm":
            raise ValueError(f"{self.folder} is a model for {self.about.task}, and only one for lm continues a text")
        check_text(text)
        # In training, every document follows an end-of-text token.
        start = [self.about.roles["eot"], *map(int, self.tokenizer.documents([text])[0])]
        limit = self.about.limit
        if limit is not None and len(start) >= limit:
            raise ValueError(f"the prompt has {len(start) - 1} tokens, and this model takes at most {limit - 2} to go on from: shorten it")
        return start, max_new if limit is None else min(max_new, limit - len(start))

    def empty_state(self, batch: int) -> states.State:
        return states.empty(self.about.states, batch)

    def step(self, rows: Sequence[Sequence[int]], state: states.State) -> tuple[np.ndarray, states.State]:
        """The next tokens of each row, at least one each -> (logits [B, vocab], new state)"""
        logits, after = self._step(*padded([np.asarray(row) for row in rows], self.about.roles["pad"]), state)
        return logits, states.trim(self.about.states, after)

    def read(self, rows: Sequence[Sequence[int]], state: states.State) -> tuple[np.ndarray, states.State]:
        """`step` for any number of tokens, even if the graph takes one at a time."""
        chunk = self.about.chunk
        if chunk is None or max(map(len, rows)) <= chunk:
            return self.step(rows, state)
        logits: list[np.ndarray | None] = [None] * len(rows)
        for start in range(0, max(map(len, rows)), chunk):
            here = [i for i, row in enumerate(rows) if len(row) > start]
            found, moved = self.step([rows[i][start : start + chunk] for i in here], states.take(state, here))
            rest = [i for i in range(len(rows)) if i not in set(here)]
            both = states.join(self.about.states, [moved, states.take(state, rest)]) if rest else moved
            state = states.take(both, np.argsort([*here, *rest]).tolist())
            for place, i in enumerate(here):
                logits[i] = found[place]
        return np.stack([row for row in logits if row is not None]), state

    def generate(self, prompt: str, max_new: int = 100, sampling: Sampling | None = None) -> Iterator[str]:
        """Pieces of text as they are generated; joined they are the continuation, which ends with the document or after max_new tokens."""
        sampling = sampling or Sampling()
        ids, room = self.prompt(prompt, max_new)
        stream, draws, end = TextStream(self.tokenizer, ids[1:]), np.random.default_rng(sampling.seed), self.about.roles["eot"]
        logits, state = self.read([ids], self.empty_state(1))
        for done in range(room):
            token = choose(logits[0], sampling, draws)
            if token == end:
                break
            if piece := stream.add(token):
                yield piece
            if done + 1 < room:
                logits, state = self.step([[token]], state)
        if rest := stream.end():
            yield rest


def padded(rows: Sequence[np.ndarray], pad: int, shortest: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ids -> ids [B, T] int64 and mask [B, T] bool, padding at the end. T: at least `shortest`."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    mask = np.arange(max(int(lengths.max()), shortest)) < lengths[:, None]
    ids = np.full(mask.shape, pad, dtype=np.int64)
    ids[mask] = np.concatenate(rows)
    return ids, mask


def softmax(logits: np.ndarray) -> np.ndarray:
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(logits, -80, 80)))
