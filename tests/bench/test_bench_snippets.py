"""Snippets of Python's own standard library, for `tokmix bench user`."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.speed import snippets
from tokmix.data.split import text_key


@pytest.fixture(scope="module")
def found() -> list[snippets.Snippet]:
    return snippets.collect(snippets.standard_library())


def test_classes_are_balanced_in_each_split(found):
    counts = Counter((one.split, one.label) for one in found)
    assert {label for _, label in counts} == set(snippets.PACKAGES)
    for split in ("train", "test"):
        assert len({counts[split, label] for label in snippets.PACKAGES}) == 1
    assert counts["train", "asyncio"] > 100 and counts["test", "asyncio"] > 20


def test_no_file_is_in_two_splits_and_no_text_is_there_twice(found):
    splits: dict[str, set[str]] = {}
    for one in found:
        splits.setdefault(one.file, set()).add(one.split)
    assert all(len(there) == 1 for there in splits.values())
    assert len({text_key(one.text) for one in found}) == len(found)


def test_a_snippet_is_what_its_file_says(found):
    root = snippets.standard_library()
    for one in found[:: len(found) // 50]:
        assert one.file.split("/")[0] == one.label and "test" not in one.file.split("/")
        assert one.text in (root / one.file).read_text(encoding="utf-8", errors="ignore")
        assert snippets.SPOKEN <= len(one.text.splitlines()) <= snippets.LINES
    assert found == snippets.collect(root), "the same snippets every time"


def test_a_python_without_its_sources_is_one_line(tmp_path):
    with pytest.raises(ValueError, match="holds no source of asyncio, email"):
        snippets.collect(tmp_path)
    for name in snippets.PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("x = 1\n" * 40)
    with pytest.raises(ValueError, match="too little source"):
        snippets.collect(tmp_path)
