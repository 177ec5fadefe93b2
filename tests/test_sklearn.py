"""tokmix.sklearn: the estimators inside of scikit-learn's own tools, and under its own checks."""

from __future__ import annotations

import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("sklearn")
pytest.importorskip("tokenizers")
pytest.importorskip("transformers")

from scipy.sparse import csr_matrix  # noqa: E402
from sklearn import config_context  # noqa: E402
from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402
from sklearn.utils.validation import validate_data  # noqa: E402

from tests.lab import BAD, GOOD, REST  # noqa: E402
from tokmix.sklearn import TextClassifier, TextEmbedder, TextRegressor  # noqa: E402

SMALL: dict[str, Any] = {"stack": "hypermixing(hidden=16)", "dim": 16, "epochs": 10, "lr": 5e-3, "vocab": 200}
NETWORK = SMALL | {"bag_of_words": False, "epochs": 30}
QUICK = SMALL | {"epochs": 1}


def draw(rows: int, seed: int = 0) -> tuple[list[str], list[str]]:
    pick, texts, labels = random.Random(seed), [], []
    for _ in range(rows):
        label = pick.choice(["good", "bad"])
        words = pick.choices(REST.split(), k=pick.randint(2, 9))
        words.insert(pick.randint(0, len(words)), pick.choice((GOOD if label == "good" else BAD).split()))
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


X, Y = draw(200)


@pytest.fixture(scope="module")
def fitted() -> TextClassifier:
    return TextClassifier(**NETWORK).fit(X, Y)


def test_a_classifier_learns_and_keeps_the_classes(fitted: TextClassifier) -> None:
    assert fitted.classes_.tolist() == ["bad", "good"] and fitted.score(X, Y) > 0.95
    chances = fitted.predict_proba(X)
    assert chances.shape == (200, 2) and np.allclose(chances.sum(1), 1)
    assert (fitted.classes_[chances.argmax(1)] == fitted.predict(X)).all()
    numbers = TextClassifier(**QUICK).fit(X, [30 if label == "good" else -4 for label in Y])
    assert numbers.classes_.tolist() == [-4, 30] and set(numbers.predict(X)) <= {-4, 30}


def test_texts_come_in_any_container(fitted: TextClassifier) -> None:
    pandas = pytest.importorskip("pandas")
    series = pandas.Series(X[:9], index=range(50, 59))
    wanted = fitted.predict(X[:9]).tolist()
    for given in (tuple(X[:9]), np.array(X[:9]), np.array(X[:9], dtype=object)[:, None], series, series.to_frame("review"), iter(X[:9])):
        assert fitted.predict(given).tolist() == wanted
    assert TextClassifier(**QUICK).fit(series, pandas.Series(Y[:9], index=range(50, 59))).classes_.tolist() == ["bad", "good"]
    assert fitted.predict([]).shape == (0,)


def test_pickles_hold_safetensors_and_give_the_same_answers(fitted: TextClassifier, tmp_path: Path) -> None:
    import joblib
    from safetensors.torch import load

    wanted = fitted.predict_proba(X[:20])
    tensors = load(fitted.model_files_["model.safetensors"])
    assert sum(tensor.numel() for tensor in tensors.values()) == fitted.model_.model.parameter_count()
    joblib.dump(fitted, tmp_path / "model.joblib")
    for again in (pickle.loads(pickle.dumps(fitted)), joblib.load(tmp_path / "model.joblib")):
        assert (again.predict_proba(X[:20]) == wanted).all() and "_loaded" not in pickle.loads(pickle.dumps(again)).__dict__
    assert not hasattr(clone(fitted), "model_files_") and clone(fitted).get_params() == fitted.get_params()


def test_weights_weigh_the_loss() -> None:
    """Every text stands there with both labels: the weights alone say which one is learned."""
    texts, labels = X + X, Y + ["bad" if label == "good" else "good" for label in Y]
    for heavy in (slice(0, 200), slice(200, 400)):
        weights = np.full(400, 0.02)
        weights[heavy] = 1.0
        found = TextClassifier(**NETWORK, holdout=0).fit(texts, labels, sample_weight=weights)
        assert found.score(texts[heavy], labels[heavy]) > 0.9
        alone = np.zeros(400)
        alone[heavy] = 2.0
        same = TextClassifier(**QUICK).fit(texts, labels, sample_weight=alone).predict_proba(X[:5])
        kept = TextClassifier(**QUICK).fit(texts[heavy], labels[heavy], sample_weight=np.ones(200)).predict_proba(X[:5])
        assert np.allclose(same, kept), "a weight of 0 leaves a row out"


def test_class_weights_move_the_predictions() -> None:
    texts = ["one day"] * 90 + ["the road"] * 10
    labels = ["a"] * 60 + ["b"] * 30 + ["b"] * 10  # "one day" is an a in two thirds of the rows
    plain = TextClassifier(**NETWORK, holdout=0).fit(texts, labels).predict_proba(["one day"])[0]
    heavy = TextClassifier(**NETWORK, holdout=0, class_weight={"a": 1, "b": 20}).fit(texts, labels).predict_proba(["one day"])[0]
    balanced = TextClassifier(**NETWORK, holdout=0, class_weight="balanced").fit(texts, labels).predict_proba(["one day"])[0]
    assert plain[1] < balanced[1] < heavy[1] and heavy[1] > 0.6


def test_several_labels_a_text() -> None:
    lists = [[label] + (["day"] if "day" in text.split() else []) for text, label in zip(X, Y, strict=True)]
    found = TextClassifier(**SMALL).fit(X, lists)
    assert found.classes_.tolist() == ["bad", "day", "good"] and found.score(X, lists) > 0.8
    assert found.predict_proba(X[:3]).shape == (3, 3)
    matrix = np.array([[label in row for label in found.classes_] for row in lists]).astype(int)
    other = TextClassifier(**SMALL).fit(X, matrix)
    assert (other.predict(X[:20]) == [[label in row for label in found.classes_] for row in found.predict(X[:20])]).all()
    for same in (matrix.tolist(), csr_matrix(matrix)):
        assert (TextClassifier(**SMALL).fit(X, same).predict(X[:20]) == other.predict(X[:20])).all(), "a matrix as lists, or sparse"
    with pytest.raises(ValueError, match="class_weight='balanced' is for one label a text"):
        TextClassifier(**QUICK, class_weight="balanced").fit(X, lists)


def test_a_regressor_and_pairs() -> None:
    scores = [1.5 if label == "good" else -0.5 for label in Y]
    found = TextRegressor(**SMALL).fit(X, scores)
    assert found.score(X, scores) > 0.8 and found.predict(X).dtype == np.float64
    pairs = list(zip(X, reversed(X), strict=True))
    paired = TextRegressor(**QUICK).fit(pairs, scores)
    assert paired.predict(pairs[:4]).shape == (4,) and np.isfinite(paired.predict(np.array(pairs[:4]))).all()
    with pytest.raises(ValueError, match="X has 1 texts a row, and TextRegressor was fitted on 2"):
        paired.predict(X)


def test_an_embedder_in_a_pipeline_with_pandas_out(fitted: TextClassifier, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    embedder = TextEmbedder(**QUICK).fit(X)
    assert embedder.transform(X[:4]).shape == (4, 16) and embedder.get_feature_names_out()[1] == "textembedder1"
    assert list(embedder.set_output(transform="pandas").transform(X[:2]).columns) == [f"textembedder{i}" for i in range(16)]
    fitted.model_.save(tmp_path / "model")
    known = make_pipeline(TextEmbedder(model=tmp_path / "model"), LogisticRegression(C=100)).fit(X, Y)
    assert known.score(X, Y) > 0.95
    assert np.allclose(known[0].transform(X[:3]), fitted.model_.embed(X[:3]))


@pytest.mark.slow
def test_search_and_cross_validation() -> None:
    search = GridSearchCV(TextClassifier(**NETWORK), {"lr": [1e-5, 5e-3]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"lr": 5e-3} and search.predict(X[:2]).shape == (2,)
    assert cross_val_score(TextClassifier(**NETWORK), X, Y, cv=2, n_jobs=2).mean() > 0.7
    matrix = np.array([[label == "good", "day" in text.split()] for text, label in zip(X, Y, strict=True)]).astype(int)
    assert cross_val_score(TextClassifier(**QUICK), X, matrix, cv=2).shape == (2,), "several labels a text; lists scikit-learn refuses"


def test_weights_are_routed_to_fit_and_score() -> None:
    with config_context(enable_metadata_routing=True):
        weighed = TextClassifier(**NETWORK | {"epochs": 1}).set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        alone = np.r_[np.zeros(150), np.ones(50)]
        found = make_pipeline(weighed).fit(X, Y, sample_weight=alone)
        kept = clone(weighed).fit(X[150:], Y[150:], sample_weight=np.ones(50))
        assert np.allclose(found.predict_proba(X[:9]), kept.predict_proba(X[:9])), "a weight of 0 leaves a row out"
        right = found.predict(X[150:]) == np.array(Y[150:])
        assert found.score(X, Y, sample_weight=alone) == pytest.approx(right.mean())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("a text", ["a"]), "is one text; X is a list"),
        (([1.5, "a"], ["a", "b"]), "row 0 of X is 1.5, of type float; X holds texts"),
        (([("a", "b"), "c"], ["a", "b"]), "row 1 of X has 1 texts"),
        (([], []), "0 texts"),
        ((["a", "b"], ["x", "x"]), "one class, .*x"),
        ((["a", "b"], None), "requires y to be passed, but the target y is None"),
        ((["a", "b"], ["x"]), "inconsistent numbers of samples"),
        ((["a", "b"], ["x", "y"], [0, 0]), "every sample_weight is zero"),
        ((["a", "b"], ["x", "y"], [1, -1]), "at least 0"),
        ((["a", "b"], ["x", "y"], [1, 0]), "one class"),
        ((["a", "b"], [["x"], "y"]), "row 1 of y is one label, and other rows are lists"),
        ((["a", "b"], ["x", ["y"]]), "row 0 of y is one label, and other rows are lists"),
        (({"a": 1, "b": 2}, ["x", "y"]), "is a dict, not a list of texts"),
        (({"a", "b"}, ["x", "y"]), "is a set, not a list of texts"),
    ],
)
def test_what_does_not_work_is_named(given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TextClassifier(**QUICK).fit(*given)


@pytest.mark.parametrize(
    ("weights", "words"),
    [({"good": 0.0}, "one class, .*bad"), ({"good": -1.0}, "^class_weight should be finite"), ({"goood": 1.0}, "are not in class_weight")],
)
def test_class_weights_that_do_not_work_are_named(weights: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TextClassifier(**QUICK, class_weight=weights).fit(X, Y)


def test_other_errors_are_named() -> None:
    for ask in (TextClassifier().predict, TextClassifier().predict_proba, TextEmbedder().transform, lambda X: TextClassifier().score(X, Y)):
        with pytest.raises(NotFittedError):
            ask(X)
    with pytest.raises(ValueError, match="unknown setting 'model.dimm'"):
        TextClassifier(settings={"model.dimm": 3}).fit(X, Y)
    with pytest.raises(ValueError, match="y holds NaN"):
        TextRegressor().fit(["a", "b"], [1.0, float("nan")])


@pytest.mark.parametrize("kind", [TextClassifier, TextRegressor, TextEmbedder])
def test_check_estimator_is_clean_and_leaves_text_alone(kind: type) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Can't test estimator")  # its inputs are numbers; below they are made texts
        outcomes = check_estimator(kind(**QUICK))
    assert all(one["status"] == "passed" for one in outcomes)


def words_of(estimator: Any, given: Any, **more: Any) -> list[str]:
    """Rows of numbers as texts: a word a column, by its rounded value."""
    values = validate_data(estimator, given, dtype=np.float64, **more)
    return [" ".join(f"c{i}v{int(np.clip(round(value), -99, 99))}" for i, value in enumerate(row)) for row in values]


class _OfNumbers:
    """The estimators behind scikit-learn's checks, which know numbers alone."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        if y is None and not isinstance(self, TextEmbedder):
            return super().fit(["a"], None)  # type: ignore[misc]
        texts = words_of(self, X)
        return super().fit(texts, y) if sample_weight is None else super().fit(texts, y, sample_weight)  # type: ignore[misc]

    def _known_texts(self, X: Any) -> Any:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        return super()._known_texts(words_of(self, X, reset=False))  # type: ignore[misc]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        for part in (tags.classifier_tags, tags.regressor_tags):
            if part is not None:
                part.poor_score = True  # one epoch
        return tags


class NumberClassifier(_OfNumbers, TextClassifier):
    pass


class NumberRegressor(_OfNumbers, TextRegressor):
    pass


class NumberEmbedder(_OfNumbers, TextEmbedder):
    def fit(self, X: Any, y: Any = None) -> Any:
        return super().fit(X, y)


# docs/sklearn.md says why.
RULED_OUT = {"check_sample_weight_equivalence_on_dense_data"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [NumberClassifier, NumberRegressor, NumberEmbedder])
def test_scikit_learns_checks_hold_on_numbers_made_texts(kind: type) -> None:
    options = QUICK | {"dim": 8, "stack": "hypermixing(hidden=8)"} | ({"bag_of_words": False} if kind is NumberClassifier else {})
    settings = {"train.baseline": False} if kind is not NumberEmbedder else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        outcomes = check_estimator(kind(**options, settings=settings), on_fail=None)
    failed = {one["check_name"]: str(one["exception"])[:300] for one in outcomes if one["status"] == "failed"}
    assert set(failed) <= RULED_OUT, failed
    assert sum(one["status"] == "passed" for one in outcomes) >= 30
