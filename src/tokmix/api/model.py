"""tokmix.load: a model folder -> an object that predicts, measures, generates, embeds, explains and exports.

model = tokmix.load("run")
model.predict(["a fine film", "dull"])        ["good", "bad"]
model.predict_proba("a fine film")            numpy [classes]
model.embed(["a fine film", "dull"])          numpy [2, dim]
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tokmix.api.data import Data, Frame, as_path, named_rows
from tokmix.api.settings import Kept, as_folder, printing
from tokmix.runs.files import JsonObject

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import Tokenizer

    from tokmix.core.model import Model
    from tokmix.runtime.model import Answer
    from tokmix.study.explain.run import Explained
    from tokmix.training.model_folder import Trained

Text: TypeAlias = str | tuple[str, str]  # of a model of pairs: (one, the other)
Texts: TypeAlias = Text | Path | Frame | Mapping[str, Iterable[object]] | Iterable[Text]


def load(folder: str | Path, *, device: str = "cpu", imports: Sequence[str | Path] = ()) -> TrainedModel:
    """The model that `train` saved, from its run folder or its model folder, or a shipped encoder by its name. imports: files with
    mixers of your own."""
    from tokmix.training import encoder, model_folder
    from tokmix.training.distributed import device_of
    from tokmix.training.imports import import_files

    import_files(imports)
    return TrainedModel(model_folder.load(encoder.located(as_folder("folder", folder)), device_of(device)))


class TrainedModel:
    """One text in, one answer out; many texts in, a list or an array out. Texts may be a list, a pandas.Series or DataFrame, or the
    pathlib.Path of a file. A model of pairs takes (one, the other) as a text."""

    def __init__(self, trained: Trained):
        self._trained = trained
        self._kept: Kept | None = None  # the temporary folder it was trained in

    @property
    def folder(self) -> Path:
        return self._trained.folder

    @property
    def record(self) -> JsonObject:
        """What training.json holds: task, classes, columns, data, figures, cost, settings."""
        return self._trained.record

    @property
    def task(self) -> str:
        return self._trained.task

    @property
    def labels(self) -> list[str]:
        """The classes, in the order of `predict_proba`'s columns."""
        return list(self._trained.labels)

    @property
    def model(self) -> Model:
        """The torch module."""
        return self._trained.model

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizers.Tokenizer."""
        return self._trained.tokenizer

    def __repr__(self) -> str:
        return f"TrainedModel({str(self.folder)!r}, task={self.task!r}, stack={self.model.config.stack!r})"

    def answers(self, texts: Texts) -> Iterator[Answer]:
        """What `tokmix predict` prints, one for each text as it comes: text, label and probabilities, or text and score."""
        from tokmix.training.predict import Predictor

        return Predictor(self._trained)(self._many(texts))

    def predict(self, texts: Texts) -> Any:
        """The label of each text, its labels (a list) where it may have several, or its score."""
        kind: Literal["score", "labels", "label"] = (
            "score" if self.task == "regress" else "labels" if self.task == "multilabel" else "label"
        )
        found = [answer[kind] for answer in self.answers(texts)]
        return found[0] if self._is_one(texts) else found

    def predict_proba(self, texts: Texts) -> np.ndarray:
        """The probability of each class: [texts, classes], for one text [classes]; columns as in `labels`."""
        import numpy as np

        if self.task not in ("classify", "multilabel"):
            raise ValueError(f"{self.folder} is a model for {self.task}, and predict_proba needs classify or multilabel")
        found = np.array([list(answer["probabilities"].values()) for answer in self.answers(texts)])
        return found[0] if self._is_one(texts) else found.reshape(-1, len(self.labels))

    def embed(self, texts: Texts) -> np.ndarray:
        """The mean of the hidden states that the head reads, over all tokens of a text: [texts, dim], for one text [dim]."""
        import numpy as np

        from tokmix.training.contrast import embedded

        found = np.asarray(embedded(self.model, self._encoded(list(self._many(texts)))))
        return found[0] if self._is_one(texts) else found

    def evaluate(self, data: Data, split: str | None = None, **reading: object) -> JsonObject:
        """The figures on data. reading: how it is read, as options of `tokmix eval` (text, label, header, encoding ...)."""
        from tokmix.training.evaluate import figures

        columns = self._trained.about.columns
        with printing(False), as_path(data, columns.text or None, columns.target) as path:
            return figures(self._trained, path, split, **reading)

    def generate(
        self,
        prompt: str,
        *,
        max_new: int = 200,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> str:
        """The continuation of a text by a language model."""
        return "".join(self.stream(prompt, max_new=max_new, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed))

    def stream(
        self,
        prompt: str,
        *,
        max_new: int = 200,
        temperature: float = 0.8,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> Iterator[str]:
        """As `generate`, in pieces as they come."""
        from tokmix.training.generate import stream

        return stream(self._trained, prompt, max_new, temperature, top_k, top_p, seed)

    def explain(self, text: Text, *, layer: int | None = None, samples: int | None = None, seed: int = 0) -> Explained:
        """Which token reads which: `.tokens`, and a map for each layer in `.maps`. layer: only this one, from 1; 0: the whole stack."""
        from tokmix.study.explain.run import of_text

        row = self._row(0, text)
        return of_text(self._trained, [row] if isinstance(row, str) else row, layer=layer, samples=samples, seed=seed)

    def save(self, out: str | Path) -> Path:
        """A copy of the model folder, for a model that was trained without `out`."""
        from tokmix.runs.files import check_free, new_folder

        out = as_folder("out", out)
        check_free(out)
        with new_folder(out) as folder:
            shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return out

    def export(self, out: str | Path, *, format: str = "onnx", int8: bool = False, network: bool = False) -> Path:
        """The folder `out` with the model as a graph, as `tokmix export` writes it. format: onnx or torch. network: the network alone,
        where the model answers with a bag of words too."""
        from tokmix.export import export

        out = as_folder("out", out)
        export(self.folder, out, format=format, int8=int8, network=network)
        return out

    def _is_one(self, texts: Texts) -> bool:
        pair = self._trained.pair and isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(one, str) for one in texts)
        return isinstance(texts, str) or pair

    def _many(self, texts: Texts) -> Iterator[str | tuple[str, ...]]:
        from tokmix.data.read.files import place
        from tokmix.training.predict import read_texts

        if isinstance(texts, Path):
            yield from read_texts(self._trained, [str(texts)])
            return
        if isinstance(texts, (Frame, Mapping)):
            columns = self._trained.about.columns.text or ["text"]
            for number, row in enumerate(named_rows(texts)):
                picked = tuple(row[list(row)[place("the table", list(row), column)]] for column in columns)
                yield self._row(number, picked if self._trained.pair else picked[0])
            return
        if isinstance(texts, bytes) or not isinstance(texts, Iterable):
            raise ValueError(
                f"texts of type {type(texts).__name__} cannot be read: give a text, a list of texts, a table or a pathlib.Path"
            )
        for number, text in enumerate([texts] if self._is_one(texts) else texts):
            yield self._row(number, text)

    def _row(self, number: int, text: object) -> str | tuple[str, ...]:
        row = tuple(text) if isinstance(text, (tuple, list)) else (text,)
        for one in row:
            if not isinstance(one, str):
                raise ValueError(f"text {number} is {one!r}, of type {type(one).__name__}, not text")
        return row if isinstance(text, (tuple, list)) else row[0]

    def _encoded(self, texts: list[str | tuple[str, ...]]) -> list[np.ndarray]:
        """Ids as the model reads them."""
        import numpy as np

        from tokmix.core.checks import check_text

        trained = self._trained
        rows = [(text,) if isinstance(text, str) else text for text in texts]
        wanted = 2 if trained.pair else 1
        for row in rows:
            if len(row) != wanted:
                raise ValueError(f"this model reads {wanted} text{'s' * (wanted > 1)} at a time, not {len(row)}: {' | '.join(row)[:80]!r}")
            for one in row:
                check_text(one)
        if not trained.about.stream:
            return list(trained.encoder().rows(rows)[0]) if rows else []
        # In training a document begins after the end of the one before it.
        start = np.array([trained.roles["eot"]])
        documents = trained.encoder().documents([row[0] for row in rows]) if rows else []
        return [np.concatenate([start, ids])[: self.model.limit] for ids in documents]
