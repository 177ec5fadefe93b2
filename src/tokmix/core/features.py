"""Extra embeddings of a token: its n-grams, and whether the other text of a pair has the token too.

    ngrams     the token and up to n - 1 before it, hashed into one table of `buckets` embeddings. They start at zero, so an
               n-gram without training data adds nothing (as in fastText, Joulin et al. 2017).
    separator  the id between the two texts of a pair. Two embeddings tell each token which of the two texts it is in, and whether
               its id is also in the other one. A bag of words cannot compare the texts word by word, and a small network needs
               much data to learn it.

Both read whole rows, in both directions, so a causal model cannot have them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core.segments import Rows, Segments

PRIMES = (1_000_003, 92_821, 31_153, 69_069_013)  # one for each token of an n-gram
LONGEST = len(PRIMES)


class Features(nn.Module):
    def __init__(self, dim: int, ngrams: int, buckets: int, separator: int | None):
        super().__init__()
        self.ngrams, self.buckets, self.separator = ngrams, buckets, separator
        if ngrams > 1:
            self.phrases = nn.Embedding(buckets, dim)
            nn.init.zeros_(self.phrases.weight)
        if separator is not None:
            self.parts = nn.Embedding(2, dim)
            self.matches = nn.Embedding(2, dim)
            for table in (self.parts, self.matches):
                nn.init.normal_(table.weight, std=0.1)

    def forward(self, ids: Tensor, segments: Segments | None) -> Tensor:
        """ids [B, T] -> the sum of their extra embeddings [B, T, D], zero at padding"""
        if segments is None or ids.numel() == 0:
            return self._of_rows(ids, None)
        return segments.join([self._of_rows(part, rows) for part, rows in segments.split(ids)])

    def _of_rows(self, ids: Tensor, rows: Rows | None) -> Tensor:
        """ids [S, L], each row one sequence from column 0 on -> [S, L, D]."""
        x: Tensor | float = 0.0
        for n in range(2, self.ngrams + 1):
            complete = (torch.arange(ids.shape[1], device=ids.device) >= n - 1)[:, None]  # an n-gram needs n tokens
            x = x + torch.where(complete, self.phrases(ngram_hash(ids, n) % self.buckets), 0)
        if self.separator is not None:
            part, match = compare(ids, self.separator, rows)
            x = x + self.parts(part) + self.matches(match.long())
        assert isinstance(x, Tensor)
        return x


def ngram_hash(ids: Tensor, n: int) -> Tensor:
    """ids [S, L] -> [S, L], a hash >= 0 of the n tokens up to each token; tokens before the row count as 0."""
    hashed = torch.full_like(ids, n)
    for back in range(n):
        shifted = F.pad(ids, (back, 0))[:, : ids.shape[1]]
        hashed = (hashed ^ shifted) * PRIMES[back]
        hashed = hashed ^ (hashed >> 15)
    return hashed & 0x7FFFFFFF


def compare(ids: Tensor, separator: int, rows: Rows | None) -> tuple[Tensor, Tensor]:
    """ids [S, L] -> (the text that a token is in, 0 or 1; whether its id is also in the other text), in O(L log L)."""
    ends = ids == separator
    part = (ends.long().cumsum(1) - ends.long()).clamp(max=1)  # a separator belongs to the text it ends
    keys = 2 * ids + part
    plain = ~ends if rows is None else ~ends & rows.mask
    table = torch.where(plain, keys, -1)
    other_keys = 2 * ids + (1 - part)
    if torch.compiler.is_exporting():  # ONNX has no binary search: compare all pairs of tokens, O(L²) booleans
        return part, (table[:, None, :] == other_keys[:, :, None]).any(-1) & plain
    table = table.sort(dim=1).values
    index = torch.searchsorted(table, other_keys).clamp(max=ids.shape[1] - 1)
    return part, (table.gather(1, index) == other_keys) & plain
