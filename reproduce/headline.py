"""The claims on one screen: about a dozen verdicts chosen from all items, each with its effect, interval, seeds and caveat.

Which claims stand here and what is said about them is written by hand. Every number comes from the items' results files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from reproduce import item as catalogue
from reproduce import page, results
from reproduce.claims import Verdict, recorded

FORMAT = 1


@dataclass(frozen=True)
class Choice:
    """A verdict of an item: by its words; the last one where several say the same. again: the verdict of the second edition on the same
    question, which takes its place as soon as it is there; in its words * stands for anything."""

    paper: str
    item: str
    says: str  # as the item's table has it
    shown: str
    unit: str
    caveat: str
    scale: float = 1.0
    digits: int = 1
    again: Choice | None = None


@dataclass(frozen=True)
class Row:
    paper: str
    claim: str
    effect: str
    seeds: str
    verdict: str
    caveat: str


POINTS, NATS, BITS = "points", "nats", "bits per byte"


def _fair(paper: str, item: str, says: str, shown: str, caveat: str, unit: str = BITS, scale: float = 1.0, digits: int = 4) -> Choice:
    return Choice("fair", item, says, shown, unit, f"second edition of {paper}; {caveat}", scale, digits)


SMALL = "one text, 10 M parameters"
CHOICES = [
    Choice("hypermixer", "table1", "mean of five tasks: HyperMixer, tied before Transformer",
           "HyperMixer is more accurate than a Transformer, mean of five tasks", POINTS,
           "judged after the runs; parts of four of the five data sets; one search seed", 100,
           again=_fair("hypermixer", "rows", "mean of five tasks: HyperMixer before Transformer",
                       "HyperMixer is more accurate than a Transformer, mean of five tasks", "parts of three data sets", POINTS, 100, 1)),
    Choice("hypermixer", "table5", "mean of five tasks: HyperMixer, tied before shared weight vector",
           "The mixing must depend on the input", POINTS, "judged after the runs; the ablation has no positions, the whole model has", 100,
           again=_fair("hypermixer", "rows", "mean of five tasks: HyperMixer before shared weight vector, with positions",
                       "The mixing must depend on the input", "parts of three data sets", POINTS, 100, 1)),
    Choice("hypermixer", "figure3", "SNLI: the lead is larger with 5 % of the rows than with all",
           "The fewer the rows, the larger the lead (SNLI)", POINTS, "judged after the runs; QQP agrees, MNLI shows the opposite", 100),
    Choice("hypermixer", "figure4", "SNLI: HyperMixer is ahead after the same number of random trials",
           "HyperMixer is easier to tune (SNLI)", POINTS, "judged after the runs; so on four of five tasks, SST-2 is unclear"),
    Choice("hypermixer", "cost", "Cost(R) is lower for HyperMixer than for the Transformer, geometric mean of five tasks",
           "Cost(R) = E·D·H is lower than a Transformer's", "log ratio", "judged after the runs; SST-2 alone says the opposite", 1, 2),
    Choice("hypermixer", "figure2", "GPU: HyperMixing is faster than attention at every length",
           "A HyperMixing layer is faster than attention at every length", "times faster, median", "one GPU, float32; from N = 125 on",
           1, 2),
    Choice("hypermixer", "figure5", "n = 1,000: HyperMixer errs less than self-attention",
           "HyperMixer learns the shapes task from fewer examples", "error", "at n = 10,000 the two are level"),
    Choice("hypermixer", "longdocs", "at 4096 tokens HyperMixing is as good as attention or less than a point behind",
           "On long reviews HyperMixing is at most a point behind attention", POINTS, "beyond the paper; three seeds", 100,
           again=_fair("hypermixer", "imdb", "at 4096 tokens HyperMixing is as good as attention or less than a point behind",
                       "On long reviews HyperMixing is at most a point behind attention", "beyond the paper", POINTS, 100, 1)),
    Choice("hsm", "wikitext2", "`(ab, attention)*4` has a lower loss than `attention*8`",
           "Shift-attention hybrids beat attention (WikiText-2)", NATS, "sinusoidal positions, one learning rate, a small text", 1, 3,
           again=_fair("hsm", "language", "* at equal seconds of training", "Hybrids beat rotary attention at equal seconds", SMALL)),
    Choice("hsm", "hybrids", "`(ab, attention(rotary=True))*4` has a lower loss than `attention(rotary=True)*8`",
           "Hybrids beat attention with rotary positions (TinyStories)", NATS, "a small text, read five times", 1, 3,
           again=_fair("hsm", "language", "* at equal parameters", "Hybrids beat rotary attention at equal parameters", SMALL)),
    Choice("hsm", "wikitext2", "`ab*8` is at most 5% behind `attention*8`",
           "Shift mixing alone is at most 5 % behind attention (WikiText-2)", NATS, "does not hold on TinyStories", 1, 3),
    Choice("hypermlp", "lm", "HyperGLU has a lower loss than softmax + rotary + conv",
           "HyperGLU beats softmax attention", NATS, "short convolutions start near zero in both; one learning rate", 1, 3,
           again=_fair("hypermlp", "language", "HyperGLU has fewer bits per byte than *", "HyperGLU beats softmax attention", SMALL)),
    Choice("hypermlp", "lm", "HyperMLP has a lower loss than no lag layout",
           "Sequence mixing needs the layout of lags", NATS, "as above", 1, 3),
    Choice("hypermlp", "mad", "sequence mixing helps: HyperMLP is ahead of ReLU with convolution and gates",
           "Sequence mixing helps on the MAD tasks", POINTS, "three seeds that differ by tens of points", 100),
]  # fmt: skip


def rows(root: Path) -> list[Row]:
    """root: reproduce/."""
    known: dict[tuple[str, str], list[Verdict]] = {}
    found = []
    for one in CHOICES:
        new = None if one.again is None else _row(one.again, _verdict(one.again, root, known))
        found.append(new if new is not None and new.verdict != page.NOT_RUN else _row(one, _verdict(one, root, known)))
    return found


def _verdict(one: Choice, root: Path, known: dict[tuple[str, str], list[Verdict]]) -> Verdict:
    key = (one.paper, one.item)
    if key not in known:
        path = root / one.paper / "results" / f"{one.item}.json"
        with recorded() as verdicts:
            if path.is_file():
                catalogue.item(*key).tables(results.load(path))
        known[key] = verdicts
    found = [verdict for verdict in known[key] if verdict.says == one.says or (one.paper == "fair" and fnmatchcase(verdict.says, one.says))]
    return found[-1] if found else Verdict(one.says, page.NOT_RUN)


def _row(one: Choice, verdict: Verdict) -> Row:
    effect = page.effect(verdict, one.scale, one.digits)
    return Row(one.paper, one.shown, f"{effect} {one.unit}".strip(), str(verdict.seeds or ""), verdict.word, one.caveat)


def table(root: Path) -> str:
    heads = ["paper", "claim", "effect [95 %]", "seeds", "verdict", "caveat"]
    return page.table(heads, [[one.paper, one.claim, one.effect, one.seeds, f"**{one.verdict}**", one.caveat] for one in rows(root)])


def short_table(root: Path) -> str:
    """For the project's README: what each claim says and how it fared."""
    heads = ["paper", "claim", "effect [95 %]", "verdict"]
    return page.table(heads, [[one.paper, one.claim, one.effect, f"**{one.verdict}**"] for one in rows(root)])


def summary(root: Path) -> dict[str, object]:
    """What ships in the wheel, for `tokmix papers` without a checkout."""
    return {"format": FORMAT, "rows": [asdict(one) for one in rows(root)]}
