"""What somebody should know about the labels before they trust a figure: one line for each thing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tokmix.core.optional import np
from tokmix.data.card import Card
from tokmix.data.prepare.targets import MANY_NUMBERS, Targets, folded, pieces
from tokmix.data.tokens import TokenSplit

FEW = 5  # rows of a class: fewer teach little and measure nothing
TOO_FEW = 10  # rows of a table
LOPSIDED = 0.9  # share of the commonest class from which accuracy says little
SHOWN = 5
EMPTY = ("n/a", "na", "null", "#n/a", "-", "?")  # as a label, in any case; and None, as Python writes it
PARTING = (",", ";")  # between labels, as people write several in one cell
DATE = re.compile(r"\d{4}[-/.]\d\d?[-/.]\d\d?([ T].*)?|\d\d?[-/.]\d\d?[-/.](\d\d){1,2}( .*)?")
SPELLED = re.compile(r"[^\w-]{0,2}-?\d[\d.,' ]*( ?[^\w\s]| [A-Za-z]{3})?")  # a number with a comma, a currency or a unit: 3,50, $12, 12 %


def check_ids(targets: Targets, column: str) -> None:
    """A label that hardly any two rows share is an id: nothing learned from it holds for another row."""
    classes = len(targets.counts)
    spelled = [label for label in targets.counts if SPELLED.fullmatch(label)] if targets.not_number else []
    if classes > MANY_NUMBERS and len(spelled) > 0.9 * classes:
        raise ValueError(
            f"column {column!r} holds numbers that are not written as such, for instance {spelled[0]!r}: write them with a point and "
            "nothing else (12.5), or say task=classify to make each value a class"
        )
    dates = [label for label in targets.counts if DATE.fullmatch(label)]
    if classes > MANY_NUMBERS and len(dates) > 0.9 * classes:
        raise ValueError(
            f"column {column!r} holds dates, for instance {dates[0]!r}: name another column with label=, or say task=classify to make each "
            "a class"
        )
    if classes > MANY_NUMBERS and targets.rows < 2 * classes:
        raise ValueError(
            f"column {column!r} has {classes:,} distinct values in {targets.rows:,} rows, as ids or texts have: "
            "name another column with label=, or say task=classify to make each value a class"
        )


def about_targets(targets: Targets, task: str, column: str, asked: bool) -> Iterator[str]:
    """What the column's values alone tell."""
    whole = targets.numbers and not (targets.not_number or targets.fraction or targets.not_finite)
    if whole and not asked and (task == "regress" or len(targets.counts) > MANY_NUMBERS):
        many = f"more than {targets.MOST:,}" if targets.many else f"{len(targets.counts):,}"
        what, other = ("scores", "classify makes each a class") if task == "regress" else ("classes", "regress reads them as scores")
        yield f"{column} holds {many} distinct whole numbers from {targets.low:g} to {targets.high:g}, read as {what}: task={other}"
        if not targets.many and len(targets.counts) == targets.rows:
            yield f"every row has another {column}: an id teaches nothing; name another column with label="
    if targets.rows < TOO_FEW:
        yield f"{targets.rows} rows are too few to learn from, or to measure on"
    if task == "classify":
        yield from _not_labels(targets)
    if task in ("classify", "multilabel"):
        groups: dict[str, list[str]] = {}
        for label in targets.seen(task):
            groups.setdefault(folded(label), []).append(label)
        alike = [names for names in groups.values() if len(names) > 1]
        for names in alike[:SHOWN]:
            shown = " and ".join(map(repr, sorted(names)))
            if targets.alias:
                yield f"labels {shown} are one class, {targets.alias.get(names[0], names[0])!r}"
            else:
                yield f"labels {shown} differ in case or blanks alone and are {len(names)} classes: merge_labels=true makes them one"
        if len(alike) > SHOWN:
            yield f"{len(alike) - SHOWN:,} more groups of labels differ in case or blanks alone"


def _not_labels(targets: Targets) -> Iterator[str]:
    """Values that may stand for no label, or for several."""
    rows = {label: sum(counts.values()) for label, counts in targets.counts.items()}
    for label in (one for one in rows if one == "None" or one.lower() in EMPTY):
        yield f"{rows[label]:,} rows have the label {label!r}, and it is a class: leave those rows out if it stands for no label"
    for separator in PARTING:
        parts = [pieces(label, separator) for label in rows if separator in label]
        counts = Counter(one for part in parts for one in part)
        if parts and 2 * sum(count > 1 or one in rows for one, count in counts.items()) > len(counts):
            yield f"labels such as {separator.join(parts[0])!r} are one class each: label_separator={separator!r} reads several"


def check_train(card: Card) -> None:
    """A split by hash can leave a tiny table with one class to learn."""
    train = card.splits.get("train")
    known = [label for label, count in train.labels.items() if count] if train else []
    if train and card.task == "classify" and len(known) == 1:
        raise ValueError(
            f"all {train.rows:,} rows of train are {known[0]!r}, so there is nothing to learn; more rows are needed, or test=0 and valid=0"
        )


def about_rows(card: Card, splits: dict[str, TokenSplit]) -> Iterator[str]:
    """What the rows tell, once they are written."""
    if card.task == "classify" and (count := _conflicts(splits)):
        yield f"{count:,} text{'s have' if count > 1 else ' has'} different labels in different rows: at most one of them can be right"
    train = card.splits.get("train")
    if train is None or not train.labels:
        return
    few = [f"{label} {count}" for count, label in sorted((count, label) for label, count in train.labels.items() if 0 < count < FEW)]
    last = next((name for name in ("test", "valid") if name in card.splits), "train")
    known = card.splits[last]
    absent = [label for label, count in train.labels.items() if count and not known.labels.get(label) and known.rows >= TOO_FEW]
    if train.rows >= 10 * FEW:
        yield from _of_classes(few, f"fewer than {FEW} rows in train", "little can be learned of them")
        yield from _of_classes(absent, f"no row in {last}", "its figures say nothing about that")
    label, most = max(train.labels.items(), key=lambda item: item[1])
    if card.task == "classify" and train.rows >= 10 * FEW and most / train.rows >= LOPSIDED:
        yield (
            f"{label!r} is {100 * most / train.rows:.3g} % of train: always saying it has that accuracy; look at macro_f1, "
            "and train.balance=true weighs rare classes up"
        )


def _of_classes(labels: list[str], what: str, so: str) -> Iterator[str]:
    if labels:
        count = "1 class has" if len(labels) == 1 else f"{len(labels):,} classes have"
        yield f"{count} {what} ({', '.join(labels[:SHOWN])}{', ...' if len(labels) > SHOWN else ''}): {so}"


def _conflicts(splits: dict[str, TokenSplit]) -> int:
    """How many texts, by their keys, have more than one class."""
    known = [(split.keys, split.targets) for split in splits.values() if split.targets is not None and len(split)]
    if not known:
        return 0
    keys, targets = (np.concatenate([pair[i] for pair in known]) for i in (0, 1))
    order = np.lexsort((targets, keys))
    keys, targets = keys[order], targets[order]
    differs = (keys[1:] == keys[:-1]) & (targets[1:] != targets[:-1])
    return len(np.unique(keys[1:][differs]))
