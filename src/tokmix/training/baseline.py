"""A bag of words to compare with: TF-IDF of 1-2 grams and logistic regression, from scikit-learn.

It reads the same rows as the model, their tokens put back into words; both texts of a pair make one bag.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from typing import Any

from tokmix.core.optional import np
from tokmix.data.tokens import TokenFiles, TokenSplit

ITERATIONS = 300
ABSENT = "bag of words: not fitted, scikit-learn is not installed (pip install 'tokmix[lab]')"


def available() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def words(split: TokenSplit, tokenizer: Any, rows: np.ndarray | None = None, chunk: int = 4096) -> list[str]:
    """The texts of these rows, or of all."""
    texts: list[str] = []
    chosen = np.arange(len(split)) if rows is None else rows
    for start in range(0, len(chosen), chunk):
        ids, lengths = split.rows(chosen[start : start + chunk])
        texts += tokenizer.decode_batch([part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])])
    return texts


def predictions(files: TokenFiles, split: str, rows: np.ndarray | None = None) -> tuple[np.ndarray, int]:
    """Fitted on these rows of train, or on all of it -> (classes predicted for `split`, number of features)."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    tokenizer, train = files.tokenizer(), files["train"]
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]")
    assert train.targets is not None
    wanted = np.asarray(train.targets if rows is None else train.targets[rows])
    features = vectorizer.fit_transform(words(train, tokenizer, rows))
    if len(np.unique(wanted)) == 1:  # nothing to tell apart
        return np.full(len(files[split]), wanted[0]), int(features.shape[1])
    with warnings.catch_warnings():
        # On a large table they end a little before the optimum, which would be many lines to somebody who trains another model.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier = LogisticRegression(C=10.0, max_iter=ITERATIONS).fit(features, wanted)
    return classifier.predict(vectorizer.transform(words(files[split], tokenizer))), int(features.shape[1])


def bag_of_words(files: TokenFiles, split: str, rows: np.ndarray | None = None) -> dict[str, Any]:
    """Fitted on these rows of train, or on all of it -> accuracy on `split`, and the seconds it took."""
    began, wanted = time.monotonic(), files[split].targets
    assert wanted is not None
    predicted, features = predictions(files, split, rows)
    return {"accuracy": float((predicted == wanted).mean()), "features": features, "seconds": time.monotonic() - began}
