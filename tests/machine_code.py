"""What an assembler may get wrong, seen in the machine code that it made; see tokmix.ops.ptxas_workaround."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\S+)(.*?);")
REGISTER = re.compile(r"(gdesc|desc)?\[?\bUR(\d+)\b")
WRITERS = re.compile(r"U(?!ISETP|PLOP|BLKCP|TMA|STG)|R2UR|S2UR|REDUX|VOTEU")


def unset_registers(cubin: Path) -> list[str]:
    """Instructions that read a uniform register which none before them has written."""
    from triton import knobs

    shown = subprocess.run([knobs.nvidia.nvdisasm.path, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
    return unset_in(shown)


def unset_in(listing: str) -> list[str]:
    written: set[int] = set()
    found = []
    for name, operands in INSTRUCTION.findall(listing):
        writes, reads = _registers(name, [operand.strip() for operand in operands.split(",")])
        if not reads <= written:
            found.append(f"{name}{operands}")
        written |= writes | reads  # each is told once
    return found


def _registers(name: str, operands: list[str]) -> tuple[set[int], set[int]]:
    """Of one instruction. Pairs where it says 64; a product of 32-bit numbers is added to a pair in .WIDE."""
    writer, wide = WRITERS.match(name), ".64" in name or ".WIDE" in name
    writes: set[int] = set()
    reads: set[int] = set()
    for place, operand in enumerate(operands):
        for kind, number in REGISTER.findall(operand):
            first = int(number)
            if writer and not kind and not writes and (place == 0 or not operands[0].startswith("UR")):
                writes |= {first, first + 1} if wide else {first}
            elif kind == "gdesc":  # descriptors of both factors, of the second alone where the first is in registers
                in_registers = len(operands) > 1 and re.match(r"R\d", operands[1])
                reads |= set(range(first + 2 if in_registers else first, first + 4))
            else:
                pair = kind == "desc" or (writer and wide and (".WIDE" not in name or place == len(operands) - 1))
                reads |= {first, first + 1} if pair else {first}
    return writes, reads
