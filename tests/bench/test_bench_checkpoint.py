"""`tokmix bench checkpoint`: what it tells is in its file."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("safetensors")

from tokmix.cli.main import main


def test_waits_copies_and_steps_are_told(tmp_path, capsys):
    assert main(["bench", "checkpoint", "--dim", "16", "--device", "cpu", "--out", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["processes"] == 1 and found["bytes"] == found["copied_bytes"] > 3 * 4 * 8192 * 16  # weights and two moments
    for name in ("pause_s", "wait_s", "to_disk_s", "step_s"):
        middle, least, most = found[name]
        assert 0 < least <= middle <= most
    said = capsys.readouterr().out
    assert "training waits in the background" in said and "a step while it is written" in said


def test_it_reads_no_other_option(capsys):
    assert main(["bench", "checkpoint", "--lengths", "3"]) == 1
    assert "bench checkpoint does not read --lengths; it reads --dim, --device, --out" in capsys.readouterr().err
