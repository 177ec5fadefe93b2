"""The answers of the page: label probabilities, maps, and tokens one by one with their time and the size of the state.

A lock lets one computation run at a time, so that measured times do not include other requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import torch

from tokmix.core import sampling, stack
from tokmix.core.budget import match_parameters
from tokmix.core.model import Model, ModelConfig
from tokmix.core.seeds import seeded
from tokmix.data.prepare.targets import LABELLED
from tokmix.data.prepare.tokenize import Encoder
from tokmix.study.explain import run as explain
from tokmix.study.explain.words import WORD, attribute, pieces
from tokmix.training.baseline import bag_texts
from tokmix.training.eval_data import data_beside
from tokmix.training.model_folder import Trained
from tokmix.training.predict import Predictor

Facts = dict[str, object]  # becomes JSON
MAP_TOKENS = 96
MAP_SAMPLES = (4, 16)  # least and most random directions: a map should be drawn within a pause in typing
WORDS = 120  # most words of a text, which are left out one by one
EXAMPLES = 30  # rows of the data offered as examples
CONTEXT = 2048  # tokens of a prompt and what follows it


@dataclass
class Player:
    """A model on the page."""

    trained: Trained
    name: str
    untrained: bool = False

    @cached_property
    def encoder(self) -> Encoder:
        return self.trained.encoder()

    @cached_property
    def predictor(self) -> Predictor:
        return Predictor(self.trained)

    def ids(self, texts: Sequence[str]) -> tuple[list[int], bool]:
        return explain.encode(self.trained, texts, self.encoder)

    def flops(self, tokens: int) -> int:
        cost = self.trained.model.cost(tokens)
        return cost.matmul + cost.pointwise

    def facts(self) -> Facts:
        model = self.trained.model
        return {
            "name": self.name, "stack": model.config.stack, "parameters": model.parameter_count(), "untrained": self.untrained,
            "dim": model.config.dim, "layers": [layer.mixer.kind for layer in model.layers],
        }  # fmt: skip


def untrained_attention(trained: Trained) -> Player:
    """An untrained attention model of the same depth and width, and of the same number of parameters if a feed-forward width allows it.
    Its answers are noise; its time and size are real."""
    config = attention_config(trained.model.config)
    with seeded(0):
        model = Model(config).eval().to(trained.model.embedding.weight.device)
    return Player(replace(trained, model=model), "untrained attention", untrained=True)


def attention_config(config: ModelConfig) -> ModelConfig:
    heads = max(n for n in (1, 2, 4) if config.dim % n == 0)
    like = replace(config, stack=stack.unparse([stack.Spec("attention", {"heads": heads})] * len(stack.parse(config.stack))))
    try:
        return match_parameters(like, config)
    except ValueError:  # no feed-forward width gives that number: keep the same shape
        return like


class PlayService:
    def __init__(self, main: Trained, other: Trained | None = None):
        if other is not None and other.task != main.task:
            raise ValueError(f"{other.folder} is a model for {other.task}, and {main.folder} one for {main.task}: they cannot be compared")
        if other is not None and other.pair != main.pair:
            raise ValueError(f"{other.folder} and {main.folder} do not read the same number of texts")
        self.task, self.pair, self.labels = main.task, main.pair, main.labels
        names = _names(main, other)
        self.players = {"main": Player(main, names[0]), "other": untrained_attention(main) if other is None else Player(other, names[1])}
        self.lock = threading.Lock()
        if self.task in LABELLED:  # the first answer imports what it is computed with: its time would be shown as that of an answer
            self.predict((".",) * (1 + self.pair))

    def facts(self) -> Facts:
        return {
            "task": self.task, "pair": self.pair, "labels": self.labels, "map_tokens": MAP_TOKENS, "context": CONTEXT,
            "main": self.players["main"].facts(), "other": self.players["other"].facts(), "examples": self.examples(),
        }  # fmt: skip

    def predict(self, texts: Sequence[str]) -> Facts:
        """Probabilities or a score by the model, and the time and FLOPs of both models."""
        ids, cut = self.players["main"].ids(texts)
        if len(ids) > CONTEXT:
            raise ValueError(f"the text has {len(ids):,} tokens, and at most {CONTEXT:,} are taken: give a shorter one")
        return {"tokens": len(ids), "cut": cut, **{name: self._answer(player, texts) for name, player in self.players.items()}}

    def _answer(self, player: Player, texts: Sequence[str]) -> Facts:
        ids, _ = player.ids(texts)
        row = torch.tensor([ids], device=player.trained.model.embedding.weight.device)
        with self.lock:
            begin = time.perf_counter()
            said = next(player.predictor([tuple(texts)])) if self.task in LABELLED else self._read(player, row)
            took = (time.perf_counter() - begin) * 1000
        shown = {name: value for name, value in said.items() if name != "text" and not player.untrained}
        return {**shown, "ms": took, "flops": player.flops(len(ids))}

    @torch.inference_mode()
    def _read(self, player: Player, row: torch.Tensor) -> Facts:
        """Run a model that gives no answer for a whole text, to measure its time."""
        player.trained.model(row)
        return {}

    def words(self, texts: Sequence[str]) -> Facts:
        """Which words decided the label or score, as pieces of the text and as lines."""
        player = self.players["main"]
        if self.task not in LABELLED:
            raise ValueError(f"words are shown for classes and scores, and this is a model for {self.task}")
        words = sum(len(WORD.findall(text)) for text in texts)
        if words > WORDS:
            raise ValueError(f"no words are marked: the text has {words:,}, and a page has time to leave out {WORDS} of them one by one")
        with self.lock:
            begin = time.perf_counter()
            found = attribute(player.trained, texts, predictor=player.predictor)
            took = (time.perf_counter() - begin) * 1000
        shown = [[asdict(one) for one in row] for row in pieces(texts, found)]
        return {"answer": found.answer, "texts": shown, "lines": found.lines()[1:], "ms": took}

    def examples(self) -> list[list[str]]:
        """Rows of the evaluation data, if it is still next to the model."""
        trained = self.players["main"].trained
        files = data_beside(trained)
        if files is None or self.task not in LABELLED:
            return []
        split = files[files.splits[-1]]
        rows = bag_texts(trained.tokenizer, trained.roles, trained.pair, [split.row(i).tolist() for i in range(min(len(split), EXAMPLES))])
        return [[row] if isinstance(row, str) else list(row) for row in rows]

    def maps(self, texts: Sequence[str], player: str = "main", layer: int | None = None) -> Facts:
        """Maps of one layer, of the whole stack (0), or of all. Long texts get fewer random directions, so that the page need not wait."""
        chosen = self.players[player]
        ids, cut = chosen.ids(texts)
        work = len(ids) ** 2 * (1 if layer else len(chosen.trained.model.layers))
        samples = max(MAP_SAMPLES[0], min(MAP_SAMPLES[1], explain.EXACT // max(work, 1)))
        with self.lock:
            begin = time.perf_counter()
            found = explain.of_ids(chosen.trained, ids, layer=layer, limit=MAP_TOKENS, fallback=samples, cut=cut)
            return {**found.record(heads=False), "ms": (time.perf_counter() - begin) * 1000}

    def tokens(
        self,
        prompt: str,
        player: str = "main",
        max_new: int = 100,
        temperature: float = 0.8,
        top_k: int | None = None,
        seed: int | None = None,
    ) -> Iterator[Facts]:
        """One record per token: its text, its milliseconds, and the size of the model's state in numbers."""
        trained = self.players[player].trained
        if self.task != "lm":
            raise ValueError(f"this is a model for {self.task}; only one for lm continues a text")
        start, _ = self.players[player].ids([prompt])
        most = min(CONTEXT, trained.model.limit or CONTEXT)
        if len(start) >= most:
            raise ValueError(f"the prompt has {len(start):,} tokens, and there is room for {most - 1}: give a shorter one")
        max_new = min(max_new, most - len(start))
        end = trained.roles["eot"]
        stream = sampling.generate(
            trained.model, [start], max_new, temperature=temperature, top_k=top_k, stop=(end,), seed=seed, stream=True
        )
        return self._timed(trained, start, stream, end)

    def _timed(self, trained: Trained, start: list[int], stream: Iterator[tuple[int, int]], end: int) -> Iterator[Facts]:
        ids, shown = list(start), ""
        before = trained.tokenizer.decode(start[1:])
        while True:
            with self.lock:
                begin = time.perf_counter()
                step = next(stream, None)
                took = (time.perf_counter() - begin) * 1000
            if step is None:
                return
            kept = trained.model.cost(len(ids)).state  # the new token has not been read yet
            ids.append(step[1])
            text = "" if step[1] == end else trained.tokenizer.decode(ids[1:])[len(before) :]
            new = "" if text.endswith("\ufffd") else text[len(shown) :]  # an incomplete character so far
            shown = shown + new
            yield {"text": new, "ms": took, "state": kept, "read": len(ids) - 1, "end": step[1] == end}


def _names(main: Trained, other: Trained | None) -> list[str]:
    """Short names of the two folders that tell them apart."""
    parts = [one.folder.resolve().parts for one in (main, other) if one is not None]
    own = [path[:-1] if path[-1] == "model" else path for path in parts]
    names = [path[-1] for path in own]
    return names if len(set(names)) == len(names) else ["/".join(path[-2:]) for path in own]
