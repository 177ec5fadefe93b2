"""Spell the settings in an error message as options of the current command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields

from tokmix.data.prepare.settings import PrepareSettings

NAMES = [field.name for field in fields(PrepareSettings)]
# encoding=latin-1, but neither prepare.encoding=latin-1 nor --encoding=latin-1 nor f(text='x')
SETTING = re.compile(rf"(?<![\w.\-(])({'|'.join(NAMES)})=")


def as_options(message: str, known: Sequence[str]) -> str:
    """'say encoding=latin-1' -> 'say --prepare.encoding latin-1' for a command that has that option."""

    def spelled(match: re.Match[str]) -> str:
        names = (f"--prepare.{match[1]}", f"--{match[1].replace('_', '-')}")
        option = next((name for name in names if name in known), None)
        return match[0] if option is None else f"{option} "

    return SETTING.sub(spelled, message).replace(" )", ")")
