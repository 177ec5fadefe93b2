from __future__ import annotations

import subprocess
import sys

import pytest

from tokmix.bench import import_time
from tokmix.cli.main import main


def test_list_names_every_mixer(capsys: pytest.CaptureFixture[str]) -> None:
    import tokmix

    assert main(["list"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n{name} " in printed for name in tokmix.mixers())


def test_show_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    import tokmix

    assert main(["show", "hsm*2, attention(heads=2)", "--dim", "16", "--length", "8", "--vocab", "11", "--causal"]) == 0
    printed = capsys.readouterr().out
    config = tokmix.ModelConfig(stack="hsm*2, attention(heads=2)", dim=16, vocab=11, head="lm", causal=True, max_len=8)
    model = tokmix.Model(config)
    assert f"{model.parameter_count():,} parameters, {model.cost(8).matmul:,} matmul FLOPs" in printed
    assert f"{model.cost(8).causal:,}" in printed
    assert len(printed.splitlines()) == 9


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["show", "hsmm"], "did you mean 'hsm'"),
        (["show", "fnet", "--causal"], "'fnet' has no 'causal' mode"),
        (["show", "attention(heads=3)", "--dim", "16"], "heads=3 does not divide dim=16"),
    ],
)
def test_what_does_not_work_is_said_in_one_line(command: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 1
    said = capsys.readouterr().err
    assert words in said and len(said.splitlines()) == 1


@pytest.mark.parametrize("command", [[], ["shwo"], ["show"], ["show", "hsm", "--dimension", "3"], ["bench", "exports"]])
def test_a_command_line_that_cannot_be_read_exits_with_two(command: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(command)
    assert exit_.value.code == 2


def test_an_interruption_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tokenizers")

    def interrupted(*given: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tokmix.data.prepare.pipeline.prepare", interrupted)
    assert main(["prepare", "a.csv", "--out", "x"]) == 130
    assert capsys.readouterr().err == "tokmix prepare: interrupted\n"


def test_a_mistyped_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["train", "a.csv", "--out", "x", "--train.lrr", "3"])
    assert exit_.value.code == 2
    assert "train has no argument '--train.lrr', did you mean '--train.lr'?" in capsys.readouterr().err


def test_the_import_benchmark_prints_machine_and_versions() -> None:
    printed = import_time(repeats=1)
    assert "torch 2." in printed and "Python 3." in printed and "import tokmix adds" in printed


def test_a_setting_reaches_its_dataclass_and_only_what_was_said_does() -> None:
    import argparse

    from tokmix.cli.arguments import add_settings, said
    from tokmix.data.prepare.settings import PrepareSettings

    parser = argparse.ArgumentParser()
    add_settings(parser, PrepareSettings, "prepare.")
    options = parser.parse_args(["--prepare.vocab", "99", "--no-prepare.lowercase", "--prepare.labels", "a,b", "--prepare.valid", "0.2"])
    assert said(options, PrepareSettings, "prepare.") == {
        "prepare.vocab": 99,
        "prepare.lowercase": False,
        "prepare.labels": ("a", "b"),
        "prepare.valid": 0.2,
    }
    assert "tokens of a row, special ones included" in " ".join(parser.format_help().split())


def test_every_setting_of_training_says_what_it_is_and_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    from tokmix.cli.arguments import _notes, add_settings, said
    from tokmix.training.settings import ModelSettings, TrainSettings

    parser = argparse.ArgumentParser()
    add_settings(parser, ModelSettings, "model.")
    assert said(parser.parse_args(["--no-model.compare"]), ModelSettings, "model.") == {"model.compare": False}
    assert all(note for name, note in _notes(TrainSettings).items() if getattr(TrainSettings, name) is None)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    writer = subprocess.Popen([sys.executable, "-m", "tokmix", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stderr is not None
    writer.stdout.close()
    assert writer.stderr.read() == ""
    assert writer.wait() == 0
    writer.stderr.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["train", "a.csv", "--outt", "x"], "tokmix train: the following arguments are required: --out; there is no '--outt', did you"),
        (["train", "a.csv"], "tokmix train: the following arguments are required: --out (`tokmix train --help` tells all)"),
        (["bench", "layer"], "tokmix bench: argument what: invalid choice: 'layer'"),
        (["trian", "a.csv"], "tokmix: argument COMMAND: invalid choice: 'trian'"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_in_one_line(given: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(given)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and error.startswith(told) and error.count("\n") == 1
