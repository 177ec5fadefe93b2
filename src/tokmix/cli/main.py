"""The command line: finds the command, runs it, and reports an error in one line."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import tokmix
from tokmix.cli.commands import COMMANDS
from tokmix.cli.hints import as_options
from tokmix.core.checks import nearest, printable

DEBUG = "--debug"
MOST_SAID = 4000  # characters of an error: a name in a file may have millions


def entry() -> int:
    """The command `tokmix`: run main, and exit at once if this process is one of several."""
    open_closed()
    code = main()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        leave(code)
    return code


def open_closed() -> None:
    """Open the standard streams that the caller closed (`tokmix ... >&-`) on /dev/null. Else the next file that is opened would take
    their number, and what a library writes to standard error would end up in that file."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 - as long as we live


def leave(code: int) -> NoReturn:
    """End this process now. A thread of torch's distributed package may abort a process that has done its work while Python shuts down
    (github.com/pytorch/pytorch/issues/190489), and torchrun would call the whole run failed."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: list[str] | None = None) -> int:
    """-> exit code: 0 success, 1 error (reported in one line), 2 the command line cannot be read, 130 interrupted."""
    try:
        return _run(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # before the command itself began
        print("tokmix: interrupted", file=sys.stderr)
        return 130


def _run(words: list[str]) -> int:
    debug = DEBUG in _before_dashes(words)
    if debug:
        words.remove(DEBUG)
    if not words:
        _parser().exit(2, _parser().format_help())
    if words[0] == "help":  # tokmix help [COMMAND]
        words = [*words[1:2], "--help"]
    if not words[0].startswith("-") and words[0] not in COMMANDS:
        _parser().error(f"no command {words[0]!r}{nearest(words[0], COMMANDS)}")
    if words[0] not in COMMANDS:
        _parser().parse_args(words)  # --help, --version or an error
    options = _read(words[0], words[1:])
    if getattr(options, "out", None) is not None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a letter that the terminal lacks must not stop a run
    code = 0
    try:
        code = int(options.run(options))
        options.out = None  # it is written
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports the closed pipe again at exit
        if getattr(options, "out", None) is None:
            return code
        print(f"tokmix {options.command}: the reader of standard output has gone; {_interrupted(options)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(f"tokmix {options.command}: {str(error) or _interrupted(options)}", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            raise
        said = printable(f"tokmix {options.command}: {_message(error, options)}")
        print(said if len(said) <= MOST_SAID else f"{said[:MOST_SAID]}...", file=sys.stderr)
        return 1


def _interrupted(options: argparse.Namespace) -> str:
    """The message if the command itself gave none. Names --resume if the command has it and `out` was begun."""
    begun = hasattr(options, "resume") and Path(options.out).exists()
    return "interrupted; continue with the same command and --resume" if begun else "interrupted"


def _message(error: Exception, options: argparse.Namespace) -> str:
    """An expected error gives its own message. An unexpected one also gets its type and a hint to --debug."""
    text = " ".join(str(error).split())
    if isinstance(error, ImportError) and error.name == "torch":
        return "this command needs torch: pip install 'tokmix[lab]'"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    if isinstance(error, (ValueError, OSError, ImportError)) and text:
        return as_options(str(error), options.known)
    return f"{type(error).__name__}{': ' * bool(text)}{text[:500]} (unexpected error; add {DEBUG} to see the traceback)"


def _before_dashes(words: Sequence[str]) -> Sequence[str]:
    """The words in which options are read: those before `--`."""
    return words[: words.index("--") if "--" in words else None]


class _Parser(argparse.ArgumentParser):
    """Reports an unreadable command line in one line, without the usage, which fills a page for some commands."""

    words: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required"):  # one of them may be on the command line, mistyped
            names = [word.split("=")[0] for word in self.words]
            unknown = next((name for name in names if name.startswith("--") and name not in self._option_string_actions), None)
            message += "" if unknown is None else f"; there is no {unknown!r}{nearest(unknown, options_of(self))}"
        self.exit(2, f"{self.prog}: {message} (see `{self.prog} --help`)\n")


def show_help(parser: argparse.ArgumentParser, first: Sequence[str] = ()) -> NoReturn:
    """Print the options in `first` and the number of the others; without `first`, all options."""
    others = [one for one in parser._actions if one.option_strings and not set(one.option_strings) & {"-h", "--help-all", *first}]
    if first and others:
        for action in others:
            action.help = argparse.SUPPRESS
        parser.epilog = f"{parser.epilog or ''}\n\n{len(others)} more options: {parser.prog} --help-all".strip()
    elif len(others) > 12:  # argparse would repeat every option here, a page of them
        needed = " ".join(str(one.metavar or one.dest) for one in parser._actions if not one.option_strings)
        parser.usage = f"%(prog)s [OPTION ...] {needed}"
    parser.print_help()
    parser.exit()


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    return [name for name in parser._option_string_actions if name.startswith("--")]


def _parser() -> argparse.ArgumentParser:
    """The parser of `tokmix` itself: the list of commands."""
    parser = _Parser(prog="tokmix", description="Token mixing at low cost: a library and a lab.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"tokmix {tokmix.__version__}")
    parser.add_argument(DEBUG, action="store_true", help="with any command: show the traceback of an error")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        commands.add_parser(name, help=_module(name).ABOUT)
    return parser


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"tokmix.cli.commands.{name.replace('-', '_')}")


def command_parser(name: str) -> argparse.ArgumentParser:
    command = _module(name)
    about = command.ABOUT
    parser = _Parser(prog=f"tokmix {name}", description=about[0].upper() + about[1:] + ".", allow_abbrev=False, add_help=False)
    parser.add_argument("-h", "--help", action="store_true", default=argparse.SUPPRESS, help="show this help")
    help_all = "show all options" if hasattr(command, "FIRST") else argparse.SUPPRESS
    parser.add_argument("--help-all", action="store_true", default=argparse.SUPPRESS, help=help_all)
    command.add(parser)
    parser.set_defaults(run=command.run, command=name, known=options_of(parser))
    return parser


def _read(name: str, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words after the command: options and positional arguments in any order."""
    parser = command_parser(name)
    assert isinstance(parser, _Parser)
    parser.words = words
    before = set(_before_dashes(words))
    if before & {"-h", "--help", "--help-all"}:
        show_help(parser, () if "--help-all" in before else getattr(_module(name), "FIRST", ()))
    options, unknown = parser.parse_known_intermixed_args(_booleans(parser, words))
    if unknown:
        before_it = words[max(words.index(unknown[0]) - 1, 0)] if unknown[0] in words else ""
        if isinstance(parser._option_string_actions.get(before_it), argparse.BooleanOptionalAction) and not unknown[0].startswith("-"):
            parser.error(f"argument {before_it}: {unknown[0]!r} is neither true nor false")
        parser.error(f"{name} has no argument {unknown[0]!r}{nearest(unknown[0], options.known)}")
    return options


def _booleans(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """`--train.baseline false` and `--train.baseline=false` as `--no-train.baseline`."""
    rewritten: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*rewritten, word, *rest]
        name, equals, value = word.partition("=")
        if isinstance(parser._option_string_actions.get(name), argparse.BooleanOptionalAction):
            if not equals and rest and rest[0].lower() in ("true", "false"):
                value = rest.pop(0)
            if value and value.lower() not in ("true", "false"):
                parser.error(f"argument {name}: {value!r} is neither true nor false")
            word = f"--no-{name.removeprefix('--')}" if value.lower() == "false" else name
        rewritten.append(word)
    return rewritten
