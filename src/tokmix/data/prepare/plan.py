"""The first pass: which columns, which task, which classes, and how rows come into splits. Everything bad is found here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokmix.core.checks import nearest
from tokmix.data.card import BY_HASH
from tokmix.data.prepare import documents, label_report
from tokmix.data.prepare.columns import Columns, choose_columns
from tokmix.data.prepare.rows import Example, LeftOut, examples, no_label
from tokmix.data.prepare.settings import PrepareSettings
from tokmix.data.prepare.targets import BAR, LABELLED, Targets, pieces
from tokmix.data.prepare.tokenize import KINDS
from tokmix.data.read.files import Part, Text
from tokmix.data.read.files import place as place_of
from tokmix.data.split import check_shares, place
from tokmix.show.progress import Advance

MAX_LEN, LONG_MAX_LEN, LONG_SHARE, LETTERS = 512, 2048, 0.05, 4.5  # tokens of a row, usual and where so many rows are longer; of a token
SHARE = 0.1  # of valid and of test where no splits are given ...
MOST_ROWS, MOST_CHARACTERS = 20_000, 5_000_000  # ... but no more than about this much


class Plan:
    """What `look` finds out about the data, and the rows and documents that follow from it."""

    def __init__(self, parts: Sequence[Part], asked: PrepareSettings):
        self.parts, self.asked = list(parts), asked
        self.warnings = [note for part in self.parts for note in part.notes]
        self.left_out = LeftOut()
        self.targets = Targets(asked.label_separator)
        self.counts: dict[str, list[int]] = {}  # split -> [rows or documents, characters]; all in train until shares are known
        self.one_text: int | None = None  # the key of the first row, while all rows have it
        self.long = 0  # rows that are longer than MAX_LEN, by their letters
        self.block: int | None = None  # characters of a block of plain text, where documents are too few to split
        self.valid, self.test = asked.valid or 0.0, asked.test or 0.0
        self.columns = None if isinstance(self.parts[0], Text) else self._choose_columns()
        self._task: str | None = asked.task or ("lm" if self.columns is None or self.columns.target is None else None)
        if self._task in LABELLED and self.columns is None:
            raise ValueError(f"task={self._task} needs a table with a label or score column; {self.parts[0].name} is plain text")
        self.stream = self._task == "lm" or self.columns is None
        if self.stream and asked.weight is not None:
            raise ValueError(f"weight={asked.weight!r} weighs the rows of a table, and task=lm reads a running text: leave it out")
        if self.stream and self.columns is not None and len(self.columns.text) > 1:
            raise ValueError(f"task=lm reads one text column, not {' and '.join(self.columns.text)}; name it with text=")
        self.given = self._splits_are_given()
        check_shares(self.valid, self.test)

    def _choose_columns(self) -> Columns:
        asked = self.asked
        main = next((part for part in self.parts if part.split == "train"), self.parts[0])
        columns = choose_columns(
            main.name,
            main.columns(),
            task=asked.task,
            text=asked.text,
            label=asked.label,
            split=asked.split_column,
            group=asked.group,
            weight=asked.weight,
        )
        self.parts = [part for part in self.parts if not self._is_unlabelled(part, columns.target)]
        return columns

    def _is_unlabelled(self, part: Part, target: str | None) -> bool:
        """Published test sets often come without labels: that is no reason to refuse the rest."""
        if target is None or part.split not in ("valid", "test"):
            return False
        if target not in part.columns():
            if self.asked.test_file is not None:  # it was named to measure on
                place_of(part.name, part.columns(), target)
            self.warnings.append(f"{part.name} has no column {target!r}: left out")
            return True
        train = [other for other in self.parts if other.split == "train"]
        if train and (said := no_label(part, target, train)) is not None:
            if self.asked.test_file is not None:
                raise ValueError(f"{part.name} has no labels ({target!r} is {said!r} throughout): nothing can be measured on it")
            self.warnings.append(f"{part.name} has no labels ({target!r} is {said!r} throughout): left out")
            return True
        return False

    def _splits_are_given(self) -> bool:
        if self.asked.into is not None or self.asked.resplit:
            return False
        if self.columns is not None and self.columns.split is not None:
            return True
        names = {part.split for part in self.parts}
        if len(names - {None}) < 2:
            return False  # one split alone is no split: a lone train.csv is divided like any other file
        strays = [part.name for part in self.parts if part.split is None]
        if strays:
            raise ValueError(
                f"{strays[0]} is in no split while other files are; name it train..., valid... or test..., or say resplit=true"
            )
        return True

    @property
    def task(self) -> str:
        assert self._task is not None, "the task is known only after look()"
        return self._task

    @property
    def pair(self) -> bool:
        return self.columns is not None and len(self.columns.text) == 2

    @property
    def by_hash(self) -> bool:
        return not self.given and self.asked.into is None

    @property
    def labels(self) -> list[str]:
        """The classes in the order of their numbers; none unless the task is classify or multilabel."""
        if self.task not in ("classify", "multilabel"):
            return []
        assert self.columns is not None and self.columns.target is not None
        return self.targets.names(self.task, self.asked.labels or self.parts[0].classes(self.columns.target))

    def labels_of(self, target: str) -> list[str]:
        """The classes of a row's target: one, or any number where the task is multilabel."""
        found = pieces(target, self.asked.label_separator or BAR) if self.task == "multilabel" else [target]
        return [self.targets.alias.get(label, label) for label in found]

    @property
    def max_len(self) -> int:
        """Known after look(). The bag of words reads no more of a row than the network does, so it is not to be little."""
        return self.asked.max_len or (LONG_MAX_LEN if self.long > LONG_SHARE * self.rows_seen else MAX_LEN)

    @property
    def rows_seen(self) -> int:
        return sum(rows for rows, _ in self.counts.values())

    @property
    def characters_seen(self) -> int:
        return sum(characters for _, characters in self.counts.values())

    def look(self, advance: Advance) -> None:
        if self.stream:
            self._look_at_documents(advance)
        else:
            self._look_at_rows(advance)
        if self.asked.labels and self.task not in ("classify", "multilabel"):
            raise ValueError(
                f"labels={','.join(self.asked.labels)} names classes, and this is {self.task}: leave it out, or say task=classify"
            )
        if self.asked.label_separator is not None and self.task != "multilabel":
            raise ValueError(f"label_separator={self.asked.label_separator!r} parts the labels of multilabel, and this is {self.task}")
        if self.by_hash:
            self._set_shares()

    def _check_counts(self) -> None:
        if not self.rows_seen:
            raise ValueError(f"{self.parts[0].name} holds no text" + (f" ({self.left_out})" if self.left_out.counts else ""))
        learns = self.asked.tokenizer is None or self.asked.tokenizer in KINDS  # a tokenizer, from train
        if learns and self.given and "train" not in self.counts:
            raise ValueError(f"there is no train split, only {' and '.join(self.counts)}")

    def _look_at_rows(self, advance: Advance) -> None:
        assert self.columns is not None
        for example in examples(self.parts, self.columns, self._given_split, self.left_out):
            if example.target is not None:
                self.targets.see(example.target, example.split, example.where)
            self.one_text = example.key if self.one_text in (None, example.key) else -1
            letters = sum(map(len, example.texts))
            self.long += letters > LETTERS * MAX_LEN
            self._count(example.split, letters)
            advance(1)
        self._check_counts()
        if self.one_text != -1 and self.rows_seen >= label_report.TOO_FEW and self.asked.into is None:
            raise ValueError(
                f"every row has the same {' and '.join(self.columns.text)}: there is nothing to learn (text=COLUMN names another)"
            )
        column = self.columns.target or ""
        self._task = self._task or self.targets.task(column)
        self.targets.settle(self.task)
        if self.task in LABELLED and not self.asked.labels:
            if self.asked.task is None and self.task == "classify":
                label_report.check_ids(self.targets, column)
            self.targets.check(self.task, column)
        if self.task in ("classify", "multilabel"):
            if self.asked.merge_labels:
                self.targets.merge(self.task, self.asked.labels)
            self._check_labels()
        if self.task in LABELLED and not self.asked.labels:
            self.warnings += label_report.about_targets(self.targets, self.task, column, self.asked.task is not None)

    def _look_at_documents(self, advance: Advance) -> None:
        survey, visible = documents.Survey(), set()
        for part in self.parts:
            for piece in documents.text_pieces(part, self.columns, self._given_split, self.left_out):
                survey.see(piece)
                if not piece.text.isspace():
                    visible.add(piece.split)
                self._count(piece.split, len(piece.text), int(piece.first))
                advance(len(piece.text))
        self._check_counts()
        for split in self.counts:
            if split not in visible:
                raise ValueError(f"{split if self.given else self.parts[0].name} holds no text, only white space")
        if self.columns is None and self.by_hash:
            self.block = survey.block()

    def _count(self, split: str, characters: int, rows: int = 1) -> None:
        seen = self.counts.setdefault(split, [0, 0])
        seen[0] += rows
        seen[1] += characters

    def _check_labels(self) -> None:
        if self.asked.labels:
            known = list(self.asked.labels)
        elif self.given:
            known = [name for name, counts in self.targets.seen(self.task).items() if "train" in counts]
        else:
            return
        for value in self.targets.seen(self.task):
            if self.targets.alias.get(value, value) not in known:
                where, some = self.targets.first[value], ", ".join(known[:20])
                raise ValueError(f"{where}: label {value!r} does not occur in training; known: {some}{nearest(value, known)}")

    def _set_shares(self) -> None:
        rows, characters = self.counts["train"]
        share = min(SHARE, MOST_CHARACTERS / characters) if self.stream else min(SHARE, MOST_ROWS / rows)
        self.valid = share if self.asked.valid is None else self.asked.valid
        self.test = share if self.asked.test is None else self.asked.test
        check_shares(self.valid, self.test)

    def _given_split(self, given: str | None, key: int) -> str:
        return self.asked.into or (given if self.given and given else "train")

    def choose(self, given: str | None, key: int) -> str:
        """The split of a row, a document or a block."""
        return place(key, self.valid, self.test) if self.by_hash else self._given_split(given, key)

    def examples(self, left_out: LeftOut) -> Iterator[Example]:
        assert self.columns is not None
        return examples(self.parts, self.columns, self.choose, left_out)

    def documents(self, left_out: LeftOut) -> Iterator[documents.Piece]:
        for part in self.parts:
            yield from documents.text_pieces(part, self.columns, self.choose, left_out, self.block)

    def texts(self) -> Iterator[tuple[str, int, tuple[str, ...]]]:
        """(split, key, texts) of everything, in order."""
        if self.stream:
            yield from ((piece.split, piece.key, (piece.text,)) for piece in self.documents(LeftOut()))
        else:
            yield from ((example.split, example.key, example.texts) for example in self.examples(LeftOut()))

    def split_by(self) -> str:
        """How rows came into splits, in words."""
        columns = self.columns or Columns(())
        if self.asked.into:
            return f"everything in {self.asked.into}"
        if self.given:
            return f"splits given by column {columns.split}" if columns.split else "splits given by file names"
        if columns.group:
            return f"{BY_HASH} of {columns.group}"
        return f"{BY_HASH} of the text" + (f", in blocks of up to {self.block:,} characters" if self.block else "")
