"""What users of version 0.1.0 wrote still works, or the error message has the new spelling."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tokmix
from tokmix.cli.commands import COMMANDS
from tokmix.cli.main import command_parser, main
from tokmix.core.moved import MOVED

HERE = Path(__file__).parent
CHANGELOG = (HERE.parent / "CHANGELOG.md").read_text()
NAMES = (
    "Segments", "Rows", "Mixer", "Cost", "register", "create", "mixers", "RowMixer", "ModelConfig", "Model", "generate", "match_parameters",
    "swap_attention",
)  # fmt: skip


def first_release() -> dict[str, list[str]]:
    """Every command of version 0.1.0 with its options."""
    parts = re.split(r"^\[(\w+)\]$", (HERE / "first_release.txt").read_text(), flags=re.M)[1:]
    return {name: words.split() for name, words in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("command", first_release())
def test_commands_and_options_are_still_there(command: str) -> None:
    assert command in COMMANDS
    known = command_parser(command)._option_string_actions
    assert [option for option in first_release()[command] if option not in known] == []


def test_booleans_can_still_be_turned_off() -> None:
    actions = command_parser("train")._option_string_actions
    booleans = [name for name, action in actions.items() if isinstance(action, argparse.BooleanOptionalAction)]
    assert "--train.baseline" in booleans and all(f"--no-{name[2:]}" in actions for name in booleans if not name.startswith("--no-"))


def test_public_names_are_still_there() -> None:
    assert [name for name in NAMES if name not in tokmix.__all__] == []


@pytest.mark.parametrize("old", MOVED)
def test_a_module_that_moved_says_where_to(old: str) -> None:
    new = MOVED[old]
    with pytest.raises(ModuleNotFoundError, match=f"{old} is now {new}"):
        importlib.import_module(old)
    if not new.endswith("in the repository"):
        assert importlib.util.find_spec(new) is not None
    assert "core/moved.py" in CHANGELOG


def test_an_old_import_line_says_the_new_one() -> None:
    done = subprocess.run([sys.executable, "-c", "from tokmix.tune.space import Space"], capture_output=True, text=True, cwd=HERE.parent)
    assert done.stderr.endswith("ModuleNotFoundError: tokmix.tune is now tokmix.study.tune\n")


def test_a_bare_name_of_the_hub_says_the_new_spelling(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["prepare", "some-team/some-data", "--out", str(tmp_path / "out")]) == 1
    assert "hub:some-team/some-data" in capsys.readouterr().err and "`hub:NAME`" in CHANGELOG
