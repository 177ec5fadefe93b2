"""Extra embeddings of a token in a table's row: the words around it, and whether the other text of a pair has it too.

    ngrams     the token and up to n - 1 before it, hashed into one table of `buckets` embeddings, which start at zero:
               an n-gram that was never seen says nothing (fastText's trick, Joulin et al. 2017)
    separator  the id between the two texts of a pair. Each token learns which of the two it stands in, and whether its id also
               stands in the other one, by two embeddings. Comparing word with word is what a bag of words cannot do and what a
               small network needs much data to find out.

Both read whole rows, in both directions; a causal model has neither.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tokmix.core.segments import Rows, Segments

PRIMES = (1_000_003, 92_821, 31_153, 69_069_013)  # one for each place of an n-gram
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
        """ids [B, T] -> what to add to their embeddings [B, T, D], zero at padding"""
        if segments is None or ids.numel() == 0:
            return self._of_rows(ids, None)
        return segments.join([self._of_rows(part, rows) for part, rows in segments.split(ids)])

    def _of_rows(self, ids: Tensor, rows: Rows | None) -> Tensor:
        """ids [S, L], each row one sequence from column 0 on -> [S, L, D]."""
        x: Tensor | float = 0.0
        for n in range(2, self.ngrams + 1):
            known = (torch.arange(ids.shape[1], device=ids.device) >= n - 1)[:, None]  # an n-gram needs n tokens
            x = x + torch.where(known, self.phrases(ngram_hash(ids, n) % self.buckets), 0)
        if self.separator is not None:
            part, match = compare(ids, self.separator, rows)
            x = x + self.parts(part) + self.matches(match.long())
        assert isinstance(x, Tensor)
        return x


def ngram_hash(ids: Tensor, n: int) -> Tensor:
    """ids [S, L] -> a number [S, L] >= 0 for the n tokens that end at each; those before the row count as 0."""
    found = torch.full_like(ids, n)
    for back in range(n):
        moved = F.pad(ids, (back, 0))[:, : ids.shape[1]]
        found = (found ^ moved) * PRIMES[back]
        found = found ^ (found >> 15)
    return found & 0x7FFFFFFF


def compare(ids: Tensor, separator: int, rows: Rows | None) -> tuple[Tensor, Tensor]:
    """ids [S, L] -> (0 or 1: which text a token stands in, whether its id stands in the other text too), in O(L log L)."""
    ends = ids == separator
    part = (ends.long().cumsum(1) - ends.long()).clamp(max=1)  # a separator belongs to the text it ends
    keys = 2 * ids + part
    plain = ~ends if rows is None else ~ends & rows.mask
    table = torch.where(plain, keys, -1)
    wanted = 2 * ids + (1 - part)
    if torch.compiler.is_exporting():  # ONNX has no binary search: every token with every other, O(L²) booleans
        return part, (table[:, None, :] == wanted[:, :, None]).any(-1) & plain
    table = table.sort(dim=1).values
    place = torch.searchsorted(table, wanted).clamp(max=ids.shape[1] - 1)
    return part, (table.gather(1, place) == wanted) & plain
