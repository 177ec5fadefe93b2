"""The command line. `tokmix = tokmix.cli:main` is the entry point."""

from tokmix.cli.main import main

__all__ = ["main"]
