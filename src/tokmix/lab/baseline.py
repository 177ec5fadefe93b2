"""A bag of words to compare with: TF-IDF of 1-2 grams and logistic regression, from scikit-learn.

It reads the same rows as the model, their tokens put back into words; both texts of a pair make one bag.
"""

from __future__ import annotations

import importlib.util
import time
from typing import Any

from tokmix.data.extra import np
from tokmix.data.tokens import TokenFiles, TokenSplit

ABSENT = "bag of words: not fitted, scikit-learn is not installed (pip install 'tokmix[lab]')"


def available() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def words(split: TokenSplit, tokenizer: Any, chunk: int = 4096) -> list[str]:
    texts: list[str] = []
    for start in range(0, len(split), chunk):
        rows = np.arange(start, min(start + chunk, len(split)))
        ids, lengths = split.rows(rows)
        texts += tokenizer.decode_batch([part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])])
    return texts


def bag_of_words(files: TokenFiles, split: str) -> dict[str, Any]:
    """Fitted on train -> accuracy on `split`, and the seconds it took."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    began, tokenizer = time.monotonic(), files.tokenizer()
    vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]")
    train, wanted = files["train"], files[split].targets
    assert train.targets is not None and wanted is not None
    features = vectorizer.fit_transform(words(train, tokenizer))
    classifier = LogisticRegression(C=10.0, max_iter=300).fit(features, np.asarray(train.targets))
    predicted = classifier.predict(vectorizer.transform(words(files[split], tokenizer)))
    return {"accuracy": float((predicted == wanted).mean()), "features": int(features.shape[1]), "seconds": time.monotonic() - began}
