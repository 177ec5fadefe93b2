"""Masked language modelling. The masked tokens are a function of (seed, epoch, row), their number only of the row's length.

The count has to follow from the length: then every rank knows the number of targets of the whole batch, by which the loss
is divided, without reading the other ranks' rows. Of the hidden tokens 80 % become the mask, 10 % some other token, and
10 % stay (Devlin et al. 2019).
"""

from __future__ import annotations

from tokmix.core.checks import within
from tokmix.core.optional import np
from tokmix.data.card import Card
from tokmix.data.order import mix

IGNORE = -100  # target of a token that is not predicted; torch's cross entropy skips it by default


class Masking:
    def __init__(self, card: Card, rate: float = 0.15, seed: int = 0, always: bool = False):
        """always: every hidden token becomes the mask."""
        within("rate", rate, 0.01, 1)
        roles = card.tokenizer["roles"]
        if "mask" not in roles:
            raise ValueError("the tokenizer has no mask token; prepare the data with task=mlm")
        self.rate, self.seed, self.mask, self.always = rate, seed, roles["mask"], always
        self.kept = np.array([roles[role] for role in ("pad", "cls", "sep", "eot") if role in roles])  # never hidden
        self.ordinary = np.setdiff1d(np.arange(card.tokenizer["vocab"]), np.array(sorted(roles.values())))

    def count(self, candidates: np.ndarray) -> np.ndarray:
        """How many of this many ordinary tokens are hidden: at least one, if there is one."""
        return np.minimum(candidates, np.maximum(1, (candidates * self.rate + 0.5).astype(np.int64)))

    def __call__(self, ids: np.ndarray, lengths: np.ndarray, epoch: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """ids [N] of some rows end to end, the lengths and numbers of these rows -> (ids with some hidden [N], targets [N])"""
        place = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # of each token in its row
        owner = np.repeat(np.arange(len(lengths)), lengths)
        free = np.flatnonzero(~np.isin(ids, self.kept))
        owner = owner[free]
        chance = mix(place[free], self.seed, epoch, rows[owner])
        # Sorted by row, and randomly within a row: one sort of one key, because a GPU waits for this.
        order = np.argsort((owner.astype(np.uint64) << np.uint64(40)) | (chance >> np.uint64(24)), kind="stable")
        candidates = np.bincount(owner, minlength=len(lengths))
        rank = np.arange(len(free)) - np.repeat(np.cumsum(candidates) - candidates, candidates)
        picked = order[rank < np.repeat(self.count(candidates), candidates)]
        hidden = free[picked]
        draw = mix(chance[picked], 1)
        fate = np.zeros_like(draw) if self.always else draw % np.uint64(10)
        other = self.ordinary[((draw >> np.uint64(8)) % np.uint64(len(self.ordinary))).astype(np.int64)]
        targets = np.full(len(ids), IGNORE, dtype=np.int64)
        targets[hidden] = ids[hidden]
        ids = ids.copy()
        ids[hidden] = np.where(fate < 8, self.mask, np.where(fate == 8, other, ids[hidden]))
        return ids, targets
