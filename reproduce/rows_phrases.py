"""Tables whose training rows are pieces of sentences, each with a label of its own, as SST-2's are, while what is scored are sentences.

A row held out at random has its twin, one word longer or shorter, among those to learn from: accuracy on it rises to the end and says
nothing about new sentences. So sentences are held out, with all pieces that stand in no other sentence, as the official split does; and
only the sentences themselves are scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokmix.core.optional import np

TABLES = ("sst2",)


def sentences(texts: Sequence[str], hashes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each text: the largest hash of the sentences that it stands in, its own where it is one; and whether it is one, that is,
    stands in no other text. With rows below some hash held out, a piece is held out where all of its sentences are."""
    tidy = [" ".join(text.split()) for text in texts]
    hash_of = {text: int(value) for text, value in zip(tidy, hashes, strict=True)}
    pieces = {piece for text in hash_of for piece in _pieces(text) if piece in hash_of}
    largest = {text: 0 if text in pieces else value for text, value in hash_of.items()}
    for text in hash_of.keys() - pieces:
        for piece in _pieces(text):
            if piece in pieces:
                largest[piece] = max(largest[piece], hash_of[text])
    return np.array([largest[text] for text in tidy], dtype=np.uint64), np.array([text not in pieces for text in tidy])


def _pieces(text: str) -> Iterator[str]:
    """Neighbouring words of it, fewer than all."""
    words = text.split()
    for size in range(1, len(words)):
        for start in range(len(words) - size + 1):
            yield " ".join(words[start : start + size])
