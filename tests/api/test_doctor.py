"""`tokmix doctor` says what is there, what is missing and what does not work."""

from __future__ import annotations

import json
import re

import pytest
import torch
from torch import Tensor

import tokmix
from tokmix.api import doctor
from tokmix.cli.main import main
from tokmix.core.segments import Rows


def test_a_whole_machine_has_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = {one["about"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["tokmix"]["text"].startswith(tokmix.__version__)
    assert found["torch"]["text"] == torch.__version__
    assert {"threads", "gpu", "kernels", "disk", "[lab]", "mixers", "training"} <= set(found)
    assert all(one["state"] != doctor.FAULT for one in found.values())


def test_the_packages_of_an_extra_follow_the_extras_it_names() -> None:
    lines = ["torch<3,>=2.11; extra == 'torch'", "tokmix[torch]; extra == \"lab\"", "rich>=13; extra == \"lab\"",
             "winonly; platform_system == 'Nowhere' and extra == 'lab'"]  # fmt: skip
    assert doctor._needs(lines, "lab") == ["rich", "torch"]


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda name: name != "onnxruntime")
    found = {one.about: one for one in doctor._extras()}
    assert found["[runtime]"].state == doctor.NOTE
    assert "missing: onnxruntime; pip install 'tokmix[runtime]'" in found["[runtime]"].text
    monkeypatch.setattr(doctor, "_installed", lambda name: False)
    found = {one.about: one for one in doctor._extras()}
    assert re.fullmatch(r"missing: [\w-]+, [\w-]+, [\w-]+ and \d+ more; pip install 'tokmix\[lab\]'", found["[lab]"].text)


@pytest.mark.usefixtures("clean_registry")
def test_a_mixer_that_sees_padding_is_a_fault(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    @tokmix.register("leaky")
    class Leaky(tokmix.RowMixer):
        modes = frozenset({"bidirectional", "padded", "packed"})
        order = "T"

        def mix(self, x: Tensor, rows: Rows | None) -> Tensor:
            return x + x.shape[1]  # reads the width of the batch

        def cost(self, length: int) -> tokmix.Cost:
            return tokmix.Cost(0, length, 0)

    monkeypatch.setattr(doctor, "_try_training", lambda: "left out")
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "fault  mixers" in printed and "leaky" in printed and "1 fault," in printed
