"""The command line. `tokmix = tokmix.cli:entry` is the entry point."""

from tokmix.cli.main import entry, main

__all__ = ["entry", "main"]
