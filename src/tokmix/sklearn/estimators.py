"""The estimators: options as keywords, training on texts, a model folder kept as bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, RegressorMixin, TransformerMixin
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from tokmix.api.fit import train
from tokmix.api.model import TrainedModel, load
from tokmix.api.settings import Kept
from tokmix.sklearn.inputs import fit_texts, kind_of_labels, texts_of, weighed, weights_of

if TYPE_CHECKING:
    from sklearn.utils import Tags

TEXTS = ("text1", "text2")


class _TextEstimator(BaseEstimator):
    """What the three share: keyword options, training on texts, and a model folder kept as bytes, so that it pickles."""

    def __init__(
        self,
        *,
        stack: str | None = None,  # the mixers; None: by the kind of data
        dim: int = 128,
        epochs: int | None = None,  # None: by the size of the data
        minutes: float | None = None,  # train at most this long
        lr: float | None = None,
        dropout: float | None = None,
        max_len: int = 512,  # tokens of a text
        vocab: int | None = None,
        holdout: float | None = None,  # share of the rows kept apart to choose the best weights by; None: a tenth, 0: none
        random_state: Any = 0,
        device: str | None = None,
        settings: Mapping[str, object] | None = None,  # others of `tokmix train`, by their full name
        verbose: bool = False,
    ):
        self.stack = stack
        self.dim = dim
        self.epochs = epochs
        self.minutes = minutes
        self.lr = lr
        self.dropout = dropout
        self.max_len = max_len
        self.vocab = vocab
        self.holdout = holdout
        self.random_state = random_state
        self.device = device
        self.settings = settings
        self.verbose = verbose

    def _settings(self, task: str) -> dict[str, object]:
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(2**31)
        named = {
            "model.stack": self.stack, "model.dim": self.dim, "model.dropout": self.dropout, "train.epochs": self.epochs,
            "train.minutes": self.minutes, "train.lr": self.lr, "train.holdout": self.holdout, "train.seed": int(seed),
            "train.device": self.device, "prepare.max_len": self.max_len, "prepare.vocab": self.vocab,
        }  # fmt: skip
        fixed = {"prepare.task": task, "prepare.into": "train"} | ({"train.task": "mlm"} if task == "mlm" else {})
        return {name: value for name, value in named.items() if value is not None} | fixed | dict(self.settings or {})

    def _train(self, texts: list[tuple[str, ...]], task: str, targets: Sequence[object] | None = None, weights: Any = None) -> None:
        names = TEXTS[: len(texts[0])]
        columns: dict[str, Sequence[object]] = {name: [row[i] for row in texts] for i, name in enumerate(names)}
        settings: dict[str, Any] = self._settings(task) | {"prepare.text": ",".join(names)}
        if targets is not None:
            columns["target"], settings["prepare.label"] = targets, "target"
        if weights is not None:
            columns["weight"], settings["prepare.weight"] = weights.tolist(), "weight"
            settings.setdefault("train.baseline", False)  # a bag of words does not know of weights
        run = train(columns, verbose=self.verbose, **settings)
        self.model_files_ = read_folder(run.model.folder)
        self.n_texts_in_ = len(names)
        self.__dict__.pop("_loaded", None)
        if self.device in (None, "cpu"):
            self._loaded = run.model

    @property
    def model_(self) -> TrainedModel:
        """The model as `tokmix.load` gives it."""
        check_is_fitted(self, "model_files_")
        loaded: TrainedModel | None = self.__dict__.get("_loaded")
        if loaded is None:
            kept = Kept()
            folder = Path(kept.name) / "model"
            folder.mkdir()
            for name, content in self.model_files_.items():
                (folder / name).write_bytes(content)
            loaded = load(folder, device=self.device or "cpu")
            loaded._kept = kept
            self._loaded = loaded
        return loaded

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_loaded", None)  # it is made again from the bytes
        return state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_files_")

    def _known_texts(self, X: Any) -> list[Any]:
        check_is_fitted(self, "model_files_")
        rows = texts_of(X)
        if rows and len(rows[0]) != self.n_texts_in_:
            raise ValueError(f"X has {len(rows[0])} texts a row, and {type(self).__name__} was fitted on {self.n_texts_in_}")
        return [row if len(row) > 1 else row[0] for row in rows]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        return tags


class TextClassifier(ClassifierMixin, _TextEstimator):
    """Classes of texts. y: one label a text, or for several labels a text a list of lists, or a matrix of zeros and ones.

    class_weight   "balanced", or a dictionary class -> weight
    bag_of_words   whether a bag of words is fitted too and answers with the network where that is better; needs rows without weights
    """

    def __init__(
        self,
        *,
        stack: str | None = None,
        dim: int = 128,
        epochs: int | None = None,
        minutes: float | None = None,
        lr: float | None = None,
        dropout: float | None = None,
        max_len: int = 512,
        vocab: int | None = None,
        holdout: float | None = None,
        class_weight: Any = None,
        bag_of_words: bool = True,
        random_state: Any = 0,
        device: str | None = None,
        settings: Mapping[str, object] | None = None,
        verbose: bool = False,
    ):
        super().__init__(
            stack=stack, dim=dim, epochs=epochs, minutes=minutes, lr=lr, dropout=dropout, max_len=max_len, vocab=vocab, holdout=holdout,
            random_state=random_state, device=device, settings=settings, verbose=verbose,
        )  # fmt: skip
        self.class_weight = class_weight
        self.bag_of_words = bag_of_words

    def _settings(self, task: str) -> dict[str, object]:
        return {"train.baseline": self.bag_of_words, **super()._settings(task)}

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        texts = fit_texts(X, y)
        y = y.toarray() if hasattr(y, "toarray") else y if isinstance(y, Iterable) else np.asarray(y)
        self.several_ = kind_of_labels(y)
        if self.several_ is not None:
            return self._fit_several(texts, y, sample_weight)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        weights = weights_of(texts, sample_weight)
        if self.class_weight is not None:
            balanced = weights_of(texts, compute_sample_weight(self.class_weight, labels), "class_weight")
            weights = balanced if weights is None else weights * balanced
        if len(np.unique(numbers if weights is None else numbers[weights > 0])) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}: a classifier needs two or more, with a weight above 0")
        texts, targets, weights = weighed(texts, [str(number) for number in numbers], weights)
        self._train(texts, "classify", targets, weights)
        return self

    def _fit_several(self, texts: list[tuple[str, ...]], y: Any, sample_weight: Any) -> Self:
        if self.class_weight is not None:
            raise ValueError(f"class_weight={self.class_weight!r} is for one label a text; weigh rows with sample_weight")
        if self.several_ == "matrix":
            y = np.asarray(y)
            self.classes_, sets = np.arange(y.shape[1]), [np.flatnonzero(row) for row in y]
        else:
            self.classes_ = np.unique([label for row in y for label in row])
            sets = [np.searchsorted(self.classes_, np.unique(list(row))) if len(row) else np.zeros(0, int) for row in y]
        texts, targets, weights = weighed(texts, [[str(i) for i in row] for row in sets], weights_of(texts, sample_weight))
        self._train(texts, "multilabel", targets, weights)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """[n, classes], columns as in classes_. Of several labels a text each column is a probability by itself."""
        texts = self._known_texts(X)
        found, known = self.model_.predict_proba(texts), self.model_.labels
        full = np.zeros((len(found), len(self.classes_)))
        full[:, [int(label) for label in known]] = found
        return full

    def predict(self, X: Any) -> Any:
        """Labels of the type of y: an array, or of several labels a text a list of lists or a matrix of zeros and ones."""
        found = self.model_.predict(self._known_texts(X))
        if self.several_ is None:
            return self.classes_[[int(label) for label in found]] if found else self.classes_[:0]
        if self.several_ == "lists":
            return [[self.classes_[int(label)].item() for label in row] for row in found]
        matrix = np.zeros((len(found), len(self.classes_)), dtype=int)
        for row, labels in zip(matrix, found, strict=True):
            row[[int(label) for label in labels]] = 1
        return matrix

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy; of several labels a text the share of texts with all labels right."""
        check_is_fitted(self, "model_files_")
        if self.several_ == "lists":
            binary = MultiLabelBinarizer(classes=self.classes_)
            right = (binary.fit_transform(y) == binary.transform(self.predict(X))).all(1)
            return float(np.average(right, weights=sample_weight))
        return float(super().score(X, y, sample_weight))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class TextRegressor(RegressorMixin, _TextEstimator):
    """Scores of texts: y one finite number a text."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        texts = fit_texts(X, y)
        scores = column_or_1d(y, warn=True).astype(np.float64)
        if not np.isfinite(scores).all():
            raise ValueError("y holds NaN or infinity: a score is a finite number")
        texts, targets, weights = weighed(texts, scores.tolist(), weights_of(texts, sample_weight))
        self._train(texts, "regress", targets, weights)
        return self

    def predict(self, X: Any) -> np.ndarray:
        return np.asarray(self.model_.predict(self._known_texts(X)), dtype=np.float64)


class TextEmbedder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _TextEstimator):
    """Vectors of texts: the mean of the hidden states, [n, dim]. `fit` trains a masked language model on the texts, without labels;
    with `model`, the folder of a trained model, it takes that one as it is."""

    def __init__(
        self,
        *,
        model: str | Path | None = None,
        stack: str | None = None,
        dim: int = 128,
        epochs: int | None = None,
        minutes: float | None = None,
        lr: float | None = None,
        dropout: float | None = None,
        max_len: int = 512,
        vocab: int | None = None,
        holdout: float | None = None,
        random_state: Any = 0,
        device: str | None = None,
        settings: Mapping[str, object] | None = None,
        verbose: bool = False,
    ):
        super().__init__(
            stack=stack, dim=dim, epochs=epochs, minutes=minutes, lr=lr, dropout=dropout, max_len=max_len, vocab=vocab, holdout=holdout,
            random_state=random_state, device=device, settings=settings, verbose=verbose,
        )  # fmt: skip
        self.model = model

    def fit(self, X: Any, y: Any = None) -> Self:
        """y is ignored."""
        texts = fit_texts(X)
        if self.model is None:
            self._train(texts, "mlm")
        else:
            found = load(self.model)
            self.model_files_, self.n_texts_in_ = read_folder(found.folder), 2 if len(found.record["columns"].get("text") or ()) == 2 else 1
            self.__dict__.pop("_loaded", None)
        self._n_features_out = self.model_.model.config.dim
        return self

    def transform(self, X: Any) -> np.ndarray:
        return self.model_.embed(self._known_texts(X))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # texts have none: vectors are float32
        return tags


def read_folder(folder: Path) -> dict[str, bytes]:
    """The files of a model folder: weights as safetensors, the rest as JSON. There is no pickle among them."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
