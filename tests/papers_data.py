"""Made-up data sets in the layout of the papers' raw ones."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

from reproduce import rows_data

WORDS = ["good", "bad", "film", "plot", "actor", "dull", "fine", "the", "a", "very", 'a "lone', "quote"]


def write_tsv(path: Path, header: list[str], lines: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines("\t".join(line) + "\n" for line in [header, *lines])


def review(chance: random.Random, longest: int = 30) -> list[str]:
    words = [chance.choice(WORDS) for _ in range(chance.randint(1, longest))]
    label = chance.choice("01")
    return [" ".join([*words, "great" if label == "1" else "awful"]), label]


def pair(chance: random.Random) -> list[str]:
    premise, label = review(chance, 6)
    return [premise, review(chance, 4)[0], label]


def write_data(folder: Path) -> Path:
    """Two made-up tables and a tokenizer in the layout of the raw data sets."""
    from tokmix.data.prepare.tokenize import make_ready, train_tokenizer

    chance = random.Random(0)
    for split, count in (("train", 300), ("valid", 60)):
        write_tsv(folder / "sst2" / f"{split}.tsv.gz", ["text", "label"], [review(chance) for _ in range(count)])
        write_tsv(folder / "snli" / f"{split}.tsv.gz", ["premise", "hypothesis", "label"], [pair(chance) for _ in range(count)])
    tokenizer = train_tokenizer("wordpiece", lambda: [" ".join([*WORDS, "great", "awful"])] * 9, 200)
    tokenizer.enable_truncation(3)  # as the real file presets them
    tokenizer.enable_padding(length=512)
    (folder / "tokenizers").mkdir()
    make_ready(tokenizer, "classify", pair=True)
    tokenizer.save(str(folder / rows_data.TOKENIZER))
    return folder
