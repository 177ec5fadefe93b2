"""The stacks that the claims are about. Only the paper's abstract was at hand: variants and schedule are our reading (layers/hsm.py)."""

from __future__ import annotations

from dataclasses import replace

from reproduce.lm_plan import Arm, Entry
from tokmix.core.stack import Spec, unparse

VARIANTS = ("ab", "vector", "gate", "gate2", "matrix", "fusion")
SIMPLE = ("ab", "vector", "gate")  # those that mix no channels beyond a gate
AMONG = "gate"  # what a single attention layer stands among: the best pure variant in first rough runs
MORE_SEEDS = 5  # of the rows that claims hang on


class Ladder:
    """All rows for stacks of so many layers."""

    def __init__(self, layers: int):
        self.layers = layers
        self.attention = self._entry(["attention"] * layers, first=True, seeds=MORE_SEEDS)
        self.rotary = self._entry([Spec("attention", {"rotary": True})] * layers, first=True)
        self.none = self._entry(["identity"] * layers)
        self.pure = {name: self._pure(name) for name in VARIANTS}
        self.places = [self._one(place) for place in range(layers)]
        self.ends = self._ends("parameters")
        self.alternating = {name: self._alternating(name, "parameters") for name in ("ab", "vector", "gate")}
        self.alternating_rotary = self._entry([_hsm("ab"), Spec("attention", {"rotary": True})] * (layers // 2), first=True)
        # Equal feed-forward.
        self.narrow = {name: self._pure(name, "feed-forward") for name in VARIANTS}
        self.narrow_hybrids = [self._one(self.middle, "feed-forward"), self._ends("feed-forward"), self._alternating("ab", "feed-forward")]

    @property
    def middle(self) -> int:
        return (self.layers - 1) // 2

    @property
    def heads(self) -> Entry:
        """Every layer has all shifts, one for each group of channels."""
        return self._entry([Spec("hsm", {"variant": "vector", "heads": self.layers})] * self.layers)

    def _entry(self, stack: list[Spec] | list[str], arm: Arm = "parameters", first: bool = False, seeds: int | None = None) -> Entry:
        return Entry(unparse([Spec(one) if isinstance(one, str) else one for one in stack]), arm, seeds, first)

    def _pure(self, name: str, arm: Arm = "parameters") -> Entry:
        mine = arm == "parameters" and name == "ab"
        return self._entry([_hsm(name)] * self.layers, arm, first=mine, seeds=MORE_SEEDS if mine else None)

    def _one(self, place: int, arm: Arm = "parameters") -> Entry:
        stack = [_hsm(AMONG)] * self.layers
        stack[place] = Spec("attention")
        mine = arm == "parameters" and place == self.middle
        return self._entry(stack, arm, first=mine, seeds=MORE_SEEDS if mine else None)

    def _ends(self, arm: Arm) -> Entry:
        return self._entry([Spec("attention"), *[_hsm(AMONG)] * (self.layers - 2), Spec("attention")], arm)

    def _alternating(self, name: str, arm: Arm) -> Entry:
        mine = arm == "parameters" and name == "ab"
        return self._entry([_hsm(name), Spec("attention")] * (self.layers // 2), arm, first=mine, seeds=MORE_SEEDS if mine else None)

    def all(self) -> list[Entry]:
        return [
            self.attention, self.rotary, self.none, *self.pure.values(), self.heads, *self.places, self.ends, *self.alternating.values(),
            self.alternating_rotary, *self.narrow.values(), *self.narrow_hybrids,
        ]  # fmt: skip

    def few(self) -> list[Entry]:
        """For another text: what the claims hang on, all with the same number of seeds."""
        chosen = [
            self.attention, *(self.pure[name] for name in SIMPLE), self.places[self.middle], self.ends, self.alternating["ab"],
            self.narrow["ab"], self.narrow_hybrids[0], self.narrow_hybrids[2],
        ]  # fmt: skip
        return [replace(entry, seeds=None) for entry in chosen]

    def timed(self) -> list[Entry]:
        """All, but of the places that one attention layer can have, which take the same time, the middle one alone."""
        elsewhere = [entry for entry in self.places if entry is not self.places[self.middle]]
        return [entry for entry in self.all() if entry not in elsewhere]


def _hsm(variant: str) -> Spec:
    return Spec("hsm", {"variant": variant})
