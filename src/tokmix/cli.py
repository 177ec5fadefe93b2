"""The command line: finds the command, runs it, and says in one line what did not work."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from tokmix.checks import nearest
from tokmix.commands import COMMANDS


def main(arguments: list[str] | None = None) -> int:
    """0 = done, 1 = something given does not work (one line says what), 2 = the command line cannot be read."""
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        known = [name for name in options.known if name.startswith("--")]
        parser.error(f"{options.command} has no argument {unknown[0]!r}{nearest(unknown[0], known)}")
    try:
        code = options.run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read it, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains once more at its end
        return 0
    except (ValueError, OSError, ImportError) as error:
        print(f"tokmix {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(f"tokmix {options.command}: {str(error) or 'interrupted'}", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokmix", description="Token mixing at low cost: a library and a lab.", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        command = importlib.import_module(f"tokmix.commands.{name}")
        about = command.ABOUT
        made = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".", allow_abbrev=False)
        command.add(made)
        made.set_defaults(run=command.run, known=list(made._option_string_actions))
    return parser
