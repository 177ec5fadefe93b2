"""The tables of docs/accuracy.md are those of the committed results."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_rebuilt_from_the_results(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("accuracy_table", ROOT / "bench" / "accuracy_table.py")
    assert spec is not None and spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    written = table.PAGE.read_text()
    table.PAGE = tmp_path / "page.md"
    table.PAGE.write_text(written)
    table.main()
    assert table.PAGE.read_text() == written
    assert written.count("| TREC |") > 2, "the tables are there"
