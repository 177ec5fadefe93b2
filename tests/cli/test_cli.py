from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.speed import import_time
from tokmix.cli.commands import COMMANDS
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

    from tokmix.cli.arguments import add_settings, given_settings
    from tokmix.data.prepare.settings import PrepareSettings

    parser = argparse.ArgumentParser()
    add_settings(parser, PrepareSettings, "prepare.")
    options = parser.parse_args(["--prepare.vocab", "99", "--no-prepare.lowercase", "--prepare.labels", "a,b", "--prepare.valid", "0.2"])
    assert given_settings(options, PrepareSettings, "prepare.") == {
        "prepare.vocab": 99,
        "prepare.lowercase": False,
        "prepare.labels": ("a", "b"),
        "prepare.valid": 0.2,
    }
    assert "most tokens of a row, special tokens included" in " ".join(parser.format_help().split())


def test_every_setting_of_training_says_what_it_is_and_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    from tokmix.cli.arguments import _notes, add_settings, given_settings
    from tokmix.training.settings import ModelSettings, TrainSettings

    parser = argparse.ArgumentParser()
    add_settings(parser, ModelSettings, "model.")
    assert given_settings(parser.parse_args(["--no-model.compare"]), ModelSettings, "model.") == {"model.compare": False}
    assert all(note for name, note in _notes(TrainSettings).items() if getattr(TrainSettings, name) is None)


def test_a_reader_that_leaves_early_is_no_error() -> None:
    writer = subprocess.Popen([sys.executable, "-m", "tokmix", "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stderr is not None
    writer.stdout.close()
    assert writer.stderr.read() == ""
    assert writer.wait() == 0
    writer.stderr.close()


@pytest.mark.parametrize(("begun", "told"), [(True, "interrupted; continue with the same command and --resume"), (False, "interrupted")])
def test_a_run_whose_reader_leaves_has_not_ended_well(
    begun: bool, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """`tokmix train ... | head -1` must not look like a run that has ended."""
    errors: list[BaseException] = [BrokenPipeError(), KeyboardInterrupt()]

    def stopped(options: argparse.Namespace) -> int:
        if begun:
            (tmp_path / "run").mkdir(exist_ok=True)
        raise errors.pop(0)

    monkeypatch.setattr("tokmix.cli.commands.train.run", stopped)
    for code, words in ((1, f"the reader of standard output has gone; {told}"), (130, told)):
        assert main(["train", "t.csv", "--out", str(tmp_path / "run")]) == code
        assert capfd.readouterr().err == f"tokmix train: {words}\n"


def test_a_letter_that_the_terminal_lacks_does_not_stop_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr("tokmix.cli.commands.train.run", lambda options: print("E · D · H") or 0)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    assert main(["train", "t.csv", "--out", str(tmp_path / "run")]) == 0
    assert shown.getvalue() == b"E \\xb7 D \\xb7 H\n"


def test_an_interruption_before_the_command_began_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["tokmix.cli.main"], "_read", interrupted)
    assert main(["list"]) == 130
    assert capsys.readouterr().err == "tokmix: interrupted\n"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["train", "a.csv", "--outt", "x"], "tokmix train: the following arguments are required: --out; there is no '--outt', did you"),
        (["train", "a.csv"], "tokmix train: the following arguments are required: --out (see `tokmix train --help`)"),
        (["bench", "layer"], "tokmix bench: argument what: invalid choice: 'layer'"),
        (["trian", "a.csv"], "tokmix: no command 'trian', did you mean 'train'?"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told_in_one_line(given: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(given)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and error.startswith(told) and error.count("\n") == 1


# --- help, version, order, booleans, hints, debug ----------------------------------------------------------------------------------


def shown(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(command)
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_help_is_a_command_too_and_no_command_lists_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(["help"], capsys) == shown(["--help"], capsys)
    assert shown(["help", "train"], capsys) == shown(["train", "--help"], capsys)
    for words in ([], ["help", "trian"]):
        with pytest.raises(SystemExit) as exit_:
            main(words)
        assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == "" and all(name in captured.err for name in COMMANDS)
    assert captured.err.endswith("tokmix: no command 'trian', did you mean 'train'? (see `tokmix --help`)\n")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    import tokmix

    assert shown(["--version"], capsys) == f"tokmix {tokmix.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_at_most_five_options_that_exist_and_help_all_every_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    import importlib

    from tokmix.cli.main import command_parser, options_of

    first = getattr(importlib.import_module(f"tokmix.cli.commands.{name.replace('-', '_')}"), "FIRST", ())
    every = [option for option in options_of(command_parser(name)) if not option.startswith(("--help", "--no-"))]
    brief, whole = shown([name, "--help"], capsys), shown([name, "--help-all"], capsys)
    assert set(first) <= set(every) and all(option in whole for option in every)
    assert len(first) == 5 if first else len(every) <= 5
    if first:
        assert all(option in brief for option in first) and f"more options: tokmix {name} --help-all" in brief
        hidden = [option for option in every if option not in first]
        assert hidden and not any(line.lstrip().startswith(f"{option} ") for option in hidden for line in brief.splitlines())
        assert len(brief.splitlines()) < 40


def test_options_and_positional_arguments_stand_in_any_order(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(trained / "run")
    answers = []
    for words in (
        ["predict", run, "a lovely day", "it was awful", "--format", "table"],
        ["predict", "--format", "table", run, "a lovely day", "it was awful"],
        ["predict", run, "a lovely day", "--format", "table", "it was awful"],
    ):
        assert main(words) == 0
        answers.append(capsys.readouterr().out)
    assert len(set(answers)) == 1 and len(answers[0].splitlines()) == 2
    assert main(["show", "--dim", "16", "hsm", "--vocab", "11"]) == 0


def test_a_boolean_is_turned_off_in_three_ways() -> None:
    from tokmix.cli.commands.train import train_settings
    from tokmix.cli.main import _read

    for words in (["--train.baseline", "false"], ["--no-train.baseline"], ["--train.baseline=False"]):
        options = _read("train", [*words, "a.csv", "--out", "x"])
        assert train_settings(options) == {"train.baseline": False} and options.data == "a.csv"
    for words in (["--train.packed", "true"], ["--train.packed"], ["--train.packed=true"]):
        assert train_settings(_read("train", ["--out", "x", *words, "a.csv"])) == {"train.packed": True}


def test_a_boolean_that_is_neither_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "a.csv", "--out", "x", "--train.packed=maybe"])
    assert "argument --train.packed: 'maybe' is neither true nor false" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "a.csv", "--out", "x", "--train.packed", "maybe"])
    assert "argument --train.packed: 'maybe' is neither true nor false" in capsys.readouterr().err


def test_an_error_of_the_system_names_the_file_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> None:
        open("nothing-here")  # noqa: SIM115

    monkeypatch.setattr("tokmix.study.summary.list_mixers", missing)
    assert main(["list"]) == 1
    assert capsys.readouterr().err == "tokmix list: nothing-here: no such file or directory\n"


@pytest.mark.parametrize(
    ("command", "option"),
    [(["prepare"], "--encoding latin-1"), (["train"], "--prepare.encoding latin-1"), (["tune"], "--prepare.encoding latin-1")],
)
def test_a_hint_names_the_option_as_the_command_spells_it(
    command: list[str], option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("optuna")
    (tmp_path / "a.csv").write_bytes(b"text,label\ncaf\xe9,a\nb,c\n")
    assert main([*command, str(tmp_path / "a.csv"), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert f"for instance {option}\n" in error and error.count("\n") == 1


def test_hints_of_settings_that_a_command_has_not_stay_as_they_are() -> None:
    from tokmix.cli.hints import as_options

    told = "say label=COLUMN, or task=lm; header= names columns; train.task=lm; f(text='x'); --text=a"
    known = ["--prepare.label", "--prepare.task"]
    assert as_options(told, known) == (
        "say --prepare.label COLUMN, or --prepare.task lm; header= names columns; train.task=lm; f(text='x'); --text=a"
    )
    assert as_options("name it with split_column=COLUMN", ["--split-column"]) == "name it with --split-column COLUMN"


def test_an_unexpected_error_is_one_line_and_debug_shows_where(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> None:
        raise KeyError("of ours")

    monkeypatch.setattr("tokmix.study.summary.list_mixers", broken)
    assert main(["list"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("tokmix list: KeyError: 'of ours'") and "--debug" in error and error.count("\n") == 1
    for words in (["list", "--debug"], ["--debug", "list"]):
        with pytest.raises(KeyError):
            main(words)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_streams_that_the_caller_closed_are_no_error_and_no_file_takes_their_place(closed: tuple[int, ...]) -> None:
    """Else what a library writes to standard error would end up in the file that was opened first."""
    code = "import os, sys; from tokmix.cli.main import entry; sys.argv = ['tokmix', 'list']; code = entry()"
    code += "; file = open(os.devnull); os._exit(code or file.fileno() < 3)"

    def close() -> None:
        for number in closed:
            os.close(number)

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=close)
    assert done.returncode == 0 and done.stderr == "" and ("hypermixing" in done.stdout) == (1 not in closed)
