"""What `prepare` can be told, with its defaults. Imports nothing heavy, so that a command line can show it at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_type_hints

from tokmix.core.checks import at_least, nearest, typed


@dataclass(frozen=True)
class PrepareSettings:
    task: Literal["classify", "multilabel", "regress", "lm", "mlm"] | None = None  # None: told by the data
    text: str | None = None  # text column, or two for a pair: premise,hypothesis
    label: str | None = None  # column of the class or score
    split_column: str | None = None  # column that says train, valid or test ("split" is taken without asking)
    group: str | None = None  # column whose equal values stay in one split (the source file of a snippet, say)
    weight: str | None = None  # column of the weight of each row in the loss, a number of at least 0; None: all weigh the same
    format: Literal["csv", "tsv", "jsonl", "parquet", "txt", "xlsx", "sqlite"] | None = None  # None: told by the file's name
    separator: str | None = None  # between the cells of a csv: one character, or tab, comma, semicolon, pipe; None: from the first line
    sheet: str | None = None  # which sheet of a workbook, or table of a database, where there are several
    pattern: str | None = None  # which files of a folder, for instance *.py; unknown endings are read as plain text
    header: str | None = None  # names of the columns of a file without a header line: text,label
    encoding: str = "utf-8"
    subset: str | None = None  # configuration of a data set on the hub
    resplit: bool = False  # split by hash even where splits are given
    into: Literal["train", "valid", "test"] | None = None  # put every row into this split: for evaluating a trained model
    valid: float | None = None  # share of valid where no splits are given; None: a tenth, less for large data
    test: float | None = None  # the same for test
    test_file: str | None = None  # a file of its own for the test split: of the data itself nothing is then split off
    tokenizer: str | None = None  # wordpiece, bpe, bytes, or a tokenizer.json; None: wordpiece for rows, bpe for lm
    vocab: int | None = None  # of a tokenizer that is trained, smaller where the text has less; None: 16384 for rows, 8192 for lm
    lowercase: bool = True  # wordpiece only
    max_len: int = 512  # tokens of a row, special ones included; a running text is not cut
    long: Literal["truncate", "refuse"] = "truncate"  # what to do with a longer row
    label_separator: str | None = None  # between the labels of a cell: a row may have any number of them (task multilabel)
    merge_labels: bool = False  # labels that differ in case or blanks alone are one class
    labels: tuple[str, ...] | None = None  # the classes of a trained model, in their order: any other label is an error
    shard_tokens: int = 2**27

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(PrepareSettings).items():
            typed(name, getattr(self, name), hint)
        at_least("vocab", 2 if self.vocab is None else self.vocab, 2)
        at_least("max_len", self.max_len, 4)
        at_least("shard_tokens", self.shard_tokens, 1)
        for label in self.labels or ():
            if (self.labels or ()).count(label) > 1:
                raise ValueError(f"labels={','.join(self.labels or ())} names {label!r} twice; each class is named once")

    @classmethod
    def of(cls, **given: Any) -> PrepareSettings:
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise ValueError(f"unknown setting {name!r}; known: {', '.join(known)}{nearest(name, known)}")
        if isinstance(given.get("labels"), list):
            given["labels"] = tuple(given["labels"])
        if isinstance(given.get("text"), (list, tuple)):
            given["text"] = ",".join(given["text"])
        return cls(**given)
