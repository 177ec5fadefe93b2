"""The settings of `prepare` with their defaults. Imports nothing heavy, so that a command line can show them at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_type_hints

from tokmix.core.checks import at_least, nearest, typed


@dataclass(frozen=True)
class PrepareSettings:
    task: Literal["classify", "multilabel", "regress", "lm", "mlm"] | None = None  # None: chosen from the data
    text: str | None = None  # text column, or two for a pair: premise,hypothesis
    label: str | None = None  # column of the class or score
    split_column: str | None = None  # column that says train, valid or test; a column named "split" needs no option
    group: str | None = None  # column whose equal values stay in one split, such as the source file of a snippet
    weight: str | None = None  # column with the weight of each row in the loss, at least 0; None: equal weights
    format: Literal["csv", "tsv", "jsonl", "parquet", "txt", "xlsx", "sqlite"] | None = None  # file format; None: by the file's name
    separator: str | None = None  # between the cells of a csv: one character, or tab, comma, semicolon, pipe; None: from the first line
    sheet: str | None = None  # sheet of a workbook, or table of a database, if there are several
    pattern: str | None = None  # which files of a folder to read, such as *.py; unknown file types are read as plain text
    header: str | None = None  # column names of a file without a header line: text,label
    encoding: str = "utf-8"  # text encoding of the files
    subset: str | None = None  # configuration of a data set on the hub
    resplit: bool = False  # split by hash even if the data has splits
    into: Literal["train", "valid", "test"] | None = None  # put every row into this split, to evaluate a trained model
    valid: float | None = None  # share of rows for valid if the data has no splits; None: a tenth, less for large data
    test: float | None = None  # share of rows for test if the data has no splits; None: a tenth, less for large data
    test_file: str | None = None  # separate file for the test split; the data itself then gives no test rows
    tokenizer: str | None = None  # wordpiece, bpe, bytes, or a tokenizer.json; None: wordpiece for rows, bpe for lm
    vocab: int | None = None  # vocabulary size of a new tokenizer, smaller if the text has less; None: 16384 for rows, 8192 for lm
    lowercase: bool = True  # wordpiece: read all text as lower case
    max_len: int | None = None  # most tokens of a row, special tokens included; None: 512, and 2048 where more than 5 % of rows are longer
    long: Literal["truncate", "refuse"] = "truncate"  # what to do with a longer row: cut it, or stop with an error
    label_separator: str | None = None  # separator between the labels of a cell, for rows with any number of labels (task multilabel)
    merge_labels: bool = False  # treat labels that differ only in case or spaces as one class
    labels: tuple[str, ...] | None = None  # the classes in order, such as those of a trained model; any other label is an error
    shard_tokens: int = 2**27  # tokens in one token file

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(PrepareSettings).items():
            typed(name, getattr(self, name), hint)
        at_least("vocab", 2 if self.vocab is None else self.vocab, 2)
        at_least("max_len", 4 if self.max_len is None else self.max_len, 4)
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
