"""Weights of the authors' own layers, by their names."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tokmix
from tests.parity import BAR, load

FOLDER = Path(os.environ["TOKMIX_FIXTURES"]) if os.environ.get("TOKMIX_FIXTURES") else None
FILES = sorted(FOLDER.glob("*.npz")) if FOLDER else []


def names_of_hypermlp(data: dict[str, Tensor]) -> dict[str, Tensor]:
    """As the authors' layer calls them; its banks end with the current token."""
    given = {f"{name}.weight": data[name] for name in "qkv"} | {"c_proj.weight": data["out"]}
    given |= {"conv1.conv.weight": data["conv_k"][:, None], "conv2.conv.weight": data["conv_v"][:, None]}
    for side in ("left", "right"):
        given |= {f"{side}_gate.weight": data[f"{side}_gate_w"], f"{side}_gate.bias": data[f"{side}_gate_b"]}
    for op, number, down, up in (("op", "1", "A1", "B1t"), ("op2", "2", "U2", "V2t")):
        given |= {f"{op}.mix.U": data[down].flip(1), f"{op}.mix.Vt": data[up].flip(2), f"{op}.mix.d": data[f"p{number}"].flip(1)}
        given |= {f"control{number}.weight": data[f"control{number}_w"], f"control{number}.bias": data[f"control{number}_b"]}
    return given


def names_of_hypermixing(data: dict[str, Tensor]) -> dict[str, Tensor]:
    given = {"layer_norm.weight": data["layer_norm_weight"], "layer_norm.bias": data["layer_norm_bias"]}
    for key, value in data.items():
        if key.startswith("hyper_"):
            net, part = key.removeprefix("hyper_").split("_gen_")
            given[f"hyper.{net}_gen.{part}"] = value
    if bool(data["tied"]):  # one module under two names
        given |= {name.replace("w1", "w2"): value for name, value in given.items() if "w1_gen" in name}
    return given


@pytest.mark.skipif(not FILES, reason="TOKMIX_FIXTURES names no folder with .npz files")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_authors_numbers_come_out(path: Path) -> None:
    data = load(path)
    if "query" in data:
        mixer = tokmix.convert({f"layer.{name}": value for name, value in names_of_hypermixing(data).items()}, max_len=20, prefix="layer.")
        real, keys_real = (tokmix.Segments.from_mask(data[name]) for name in ("query_real", "key_real"))
        found = mixer(data["query"], real, keys=data["key"], values=data["value"], key_segments=keys_real)
        assert (found - data["y"])[data["query_real"]].abs().max() <= BAR
        assert mixer.tied == bool(data["tied"])
    else:
        mixer = tokmix.convert(names_of_hypermlp(data))
        assert mixer.kind == path.stem and mixer.max_len == int(data["max_len"])
        assert (mixer(data["x"]) - data["y"]).abs().max() <= BAR


def drawn(heads: int, dim: int, inner: int, hidden: int, tied: bool) -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes = {"fc1_weights": (heads, inner // heads, dim // heads), "fc1_biases": (heads, inner // heads)}
    shapes |= {"fc2_weights": (heads, hidden // heads, inner // heads), "fc2_biases": (heads, hidden // heads)}
    given = {"layer_norm.weight": torch.randn(dim).double(), "layer_norm.bias": torch.randn(dim).double()}
    for net in ("w1", "w2"):
        for name, shape in shapes.items():
            value = given[f"hyper.w1_gen.{name}"] if tied and net == "w2" else torch.randn(shape).double()
            given[f"hyper.{net}_gen.{name}"] = value
    return given


def by_hand(x: Tensor, fed: Tensor, given: dict[str, Tensor]) -> Tensor:
    """x, fed (what the hypernetworks read) [T, D], head by head, from the formula."""
    heads, outs = given["hyper.w1_gen.fc1_weights"].shape[0], []
    for h, (part, code) in enumerate(zip(x.chunk(heads, -1), fed.chunk(heads, -1), strict=True)):
        w = []
        for net in ("w1", "w2"):
            first, b1, second, b2 = (given[f"hyper.{net}_gen.{n}"][h] for n in ("fc1_weights", "fc1_biases", "fc2_weights", "fc2_biases"))
            w.append(F.gelu(code @ first.T + b1) @ second.T + b2)  # [T, k]
        outs.append(w[1] @ F.gelu(w[0].T @ part))
    return F.layer_norm(torch.cat(outs, -1), x.shape[-1:], given["layer_norm.weight"], given["layer_norm.bias"])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("origin", ["speechbrain", "authors"])
def test_position_codes_become_a_table(origin: str, tied: bool) -> None:
    given = drawn(heads=2, dim=8, inner=8, hidden=12, tied=tied)
    code, x = torch.randn(1, 11, 8).double(), torch.randn(2, 6, 8).double()
    if origin == "speechbrain":
        given["positional_encoding.pe"], fed = code, x + code[:, :6]
    else:
        given["token_information.pe"], fed = code, x * math.sqrt(8) + code[:, 1:7]
    mixer = tokmix.convert(given)
    assert mixer.max_len == (11 if origin == "speechbrain" else 10) and mixer.tied is tied
    expected = torch.stack([by_hand(one, two, given) for one, two in zip(x, fed, strict=True)])
    assert (mixer(x) - expected).abs().max() < 1e-10


def test_other_layers_are_refused_in_one_line() -> None:
    given = drawn(heads=1, dim=4, inner=4, hidden=4, tied=False)
    for changes, words in (
        ({"weight": torch.ones(1)}, "convert does not know weight: this is another version"),
        ({}, "give max_len"),
    ):
        with pytest.raises(ValueError, match=words):
            tokmix.convert(given | changes, max_len=8 if changes else None)
    with pytest.raises(ValueError, match="lacks 'layer_norm.bias'"):
        tokmix.convert({name: value for name, value in given.items() if name != "layer_norm.bias"}, max_len=8)
    with pytest.raises(ValueError, match="unknown layer with bias, weight; known: HyperMixing"):
        tokmix.convert(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="lacks op.mix.U"):
        tokmix.convert(
            {"q.weight": torch.ones(2, 2), "k.weight": torch.ones(2, 2), "v.weight": torch.ones(2, 2), "c_proj.weight": torch.ones(2, 2)}
        )
