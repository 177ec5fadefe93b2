"""A user's own code under `mypy --strict`: every public name has a type."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

OWN_CODE = """
from pathlib import Path

import torch
from torch import Tensor

import tokmix


def run(texts: list[str], labels: list[str], out: Path) -> Path:
    found = tokmix.train({"text": texts, "label": labels}, out=out, minutes=0.1)
    tokmix.train((texts, labels))
    tokmix.train(list(zip(texts, labels)), settings={"model.dim": 64})
    tokmix.train([{"text": text, "label": label} for text, label in zip(texts, labels)])
    tokmix.train(zip(texts, labels))
    model = tokmix.load(found.folder)
    reveal_type(found)
    reveal_type(model)
    reveal_type(model.predict_proba)
    reveal_type(model.generate)
    reveal_type(tokmix.tune("data.csv"))
    reveal_type(tokmix.compare(["hsm", "attention"], "data.csv"))
    return found.folder


def make() -> int:
    config = tokmix.ModelConfig(stack="hsm*2, attention", dim=16, vocab=9, head="lm", causal=True, max_len=32)
    model = tokmix.Model(config)
    mixer = tokmix.create("hsm", 16, causal=True, max_len=32)
    reveal_type(mixer)
    reveal_type(tokmix.Segments.from_lengths([3, 2]))
    reveal_type(mixer.cost(4) + model.cost(4))
    reveal_type(tokmix.generate(model, [[1, 2]], max_new=3))
    reveal_type(tokmix.mixers())
    reveal_type(tokmix.cost("hsm*3", lengths=[64]))
    return mixer.cost(4).matmul


@tokmix.register("mine")
class Mine(tokmix.RowMixer):
    modes = frozenset({"causal"})
    order = "T"

    def mix(self, x: Tensor, rows: tokmix.Rows | None) -> Tensor:
        return x

    def cost(self, length: int) -> tokmix.Cost:
        return tokmix.Cost(0, length, 0)


reveal_type(Mine)
tokmix.create("hsm", "16", causal=True, max_len=32)
"""


@pytest.mark.slow
def test_public_names_are_typed_for_a_strict_checker(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_CODE)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nmypy_path = {ROOT / 'src'}\n")
    command = ["--strict", "--follow-imports=silent", "--ignore-missing-imports", "--config-file", "mypy.ini", "own.py"]
    done = subprocess.run([sys.executable, "-m", "mypy", *command], cwd=tmp_path, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1 and '"create" has incompatible type "str"; expected "int"' in errors[0], done.stdout
    types = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(types) == OWN_CODE.count("reveal_type(")
    assert not [one for one in types if one.startswith("Any") or one.endswith("-> Any")], types
