"""scikit-learn estimators: text in, labels, scores or vectors out.

TextClassifier(minutes=1).fit(texts, labels).predict(texts)
TextRegressor().fit(texts, scores)
TextEmbedder().fit(texts).transform(texts)      the mean hidden state of each text, [n, dim]

X is a list, a pandas.Series, an array [n] or [n, 1] of texts, or [n, 2] (or a list of pairs) for pairs of texts. docs/sklearn.md
"""

from __future__ import annotations

from tokmix.sklearn.estimators import TextClassifier, TextEmbedder, TextRegressor

__all__ = ["TextClassifier", "TextEmbedder", "TextRegressor"]
