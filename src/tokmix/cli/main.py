"""The command line: finds the command, runs it, and says in one line what did not work."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from tokmix.cli.commands import COMMANDS
from tokmix.core.checks import nearest, printable


def main(arguments: list[str] | None = None) -> int:
    """0 = done, 1 = something given does not work (one line says what), 2 = the command line cannot be read."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given[: given.index("--") if "--" in given else None]
    if debug:
        given.remove("--debug")
    parser = _parser(given)
    options, unknown = parser.parse_known_args(given)
    if unknown:
        parser.error(f"{options.command} has no argument {unknown[0]!r}{nearest(unknown[0], options.known)}")
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read it, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at its end
        return 0
    except KeyboardInterrupt as error:
        print(f"tokmix {options.command}: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130
    except Exception as error:
        if debug:
            raise
        print(printable(f"tokmix {options.command}: {_one_line(error)}"), file=sys.stderr)
        return 1


def _one_line(error: Exception) -> str:
    """What was given and does not work says so itself; of anything else the kind is named, and how to see more."""
    told = " ".join(str(error).split())
    if isinstance(error, ImportError) and error.name == "torch":
        return f"{told}: pip install 'tokmix[torch]'"
    if isinstance(error, (ValueError, OSError, ImportError)) and told:
        return str(error)
    return f"{type(error).__name__}{': ' * bool(told)}{told[:500]} (unexpected: the same command with --debug shows where)"


class _Parser(argparse.ArgumentParser):
    """Says in one line what cannot be read, without the usage, which is a page of some commands."""

    given: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required"):  # what was given instead may be one of them, mistyped
            names = [word.split("=")[0] for word in self.given]
            strange = next((name for name in names if name.startswith("--") and name not in self._option_string_actions), None)
            message += "" if strange is None else f"; there is no {strange!r}{nearest(strange, options_of(self))}"
        self.exit(2, f"{self.prog}: {message} (`{self.prog} --help` tells all)\n")


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    return [name for name in parser._option_string_actions if name.startswith("--")]


def _parser(given: Sequence[str] = ()) -> argparse.ArgumentParser:
    parser = _Parser(prog="tokmix", description="Token mixing at low cost: a library and a lab.", allow_abbrev=False)
    parser.add_argument("--debug", action="store_true", help="for any command: show where an error came from")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = importlib.import_module(f"tokmix.cli.commands.{name}")
        about = command.ABOUT
        made = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", allow_abbrev=False)
        command.add(made)
        made.set_defaults(run=command.run, known=options_of(made))
        made.given = given
    return parser
