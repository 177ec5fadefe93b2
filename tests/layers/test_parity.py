"""Numbers from the authors' own layers, where TOKMIX_FIXTURES names the folder that holds them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import parity

FOLDER = os.environ.get("TOKMIX_FIXTURES")
FILES = sorted(Path(FOLDER).glob("*.npz")) if FOLDER else []


@pytest.mark.skipif(not FILES, reason="TOKMIX_FIXTURES names no folder with .npz files")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_fixture(path: Path) -> None:
    assert parity.error(path) <= parity.BAR


def test_the_script_refuses_what_it_cannot_compare(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    done = subprocess.run([sys.executable, parity.__file__, str(tmp_path / "other.npz")], capture_output=True, text=True)
    assert done.returncode == 2 and "cannot be compared" in done.stderr


def test_the_script_fails_above_the_bar(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fixture made with our own layer passes; the same with one number changed does not."""
    import torch

    import tokmix

    torch.manual_seed(0)
    mixer = tokmix.create("hypermixing", 8, causal=False, max_len=5, bias=False, hidden=12).double()
    x, real = torch.randn(2, 5, 8, dtype=torch.float64), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    arrays = {
        "query": x, "key": x, "value": x, "query_real": real, "key_real": real, "heads": torch.tensor(1), "tied": torch.tensor(True),
        "y": mixer(x, tokmix.Segments.from_mask(real)),
        "hyper_w1_gen_fc1_weights": mixer.net_in.inner.transpose(1, 2), "hyper_w1_gen_fc2_weights": mixer.net_in.outer.transpose(1, 2),
        "layer_norm_weight": mixer.output_norm.weight, "layer_norm_bias": mixer.output_norm.bias,
    }  # fmt: skip
    numbers = {key: value.detach().numpy() for key, value in arrays.items()}
    path = str(tmp_path / "made.npz")
    np.savez(path, **numbers)
    assert parity.main([path]) == 0
    numbers["y"][0, 0, 0] += 1e-9
    np.savez(path, **numbers)
    assert parity.main([path]) == 1
    assert "maximum absolute error" in capsys.readouterr().out
