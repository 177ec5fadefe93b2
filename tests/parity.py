"""Compare our mixers with numbers from the authors' own layers: python tests/parity.py FILE.npz ...

Prints the maximum absolute error over real rows for each file, and exits non-zero where one is above 1e-10.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import tokmix

BAR = 1e-10
Arrays = dict[str, Tensor]


def load(path: Path) -> Arrays:
    with np.load(path) as file:
        return {key: torch.from_numpy(np.asarray(file[key])) for key in file}


def set_parameters(module: torch.nn.Module, values: Arrays) -> None:
    """Every parameter of the module, by name: none may be missing, none may be left over."""
    parameters = dict(module.named_parameters())
    assert parameters.keys() == values.keys(), f"parameters differ: {sorted(parameters.keys() ^ values.keys())}"
    with torch.no_grad():
        for name, value in values.items():
            assert parameters[name].shape == value.shape, f"{name}: {list(parameters[name].shape)} against {list(value.shape)}"
            parameters[name].copy_(value)


def hyper_mlp(data: Arrays) -> tuple[Tensor, Tensor]:
    dim, heads, rank, max_len = data["x"].shape[-1], int(data["heads"]), int(data["rank"]), int(data["max_len"])
    name = "hyperglu" if data["A1"].shape[0] == 2 * heads else "hypermlp"
    options: dict[str, Any] = {
        "heads": heads,
        "rank": rank,
        "qk": data["q"].shape[0],
        "vo": data["v"].shape[0],
        "conv": data["conv_k"].shape[1],
    }
    mixer = tokmix.create(name, dim, causal=True, max_len=max_len, **options).double()
    values = {f"{key}.weight": data[key] for key in ("q", "k", "v", "out", "conv_k", "conv_v")}
    for side in ("left", "right"):
        values |= {f"{side}_gate.weight": data[f"{side}_gate_w"], f"{side}_gate.bias": data[f"{side}_gate_b"]}
    for number, (down, up) in (("1", ("A1", "B1t")), ("2", ("U2", "V2t"))):
        values |= {f"r{number}.down": data[down], f"r{number}.up": data[up], f"r{number}.diagonal": data[f"p{number}"]}
        values |= {f"r{number}.control.weight": data[f"control{number}_w"], f"r{number}.control.bias": data[f"control{number}_b"]}
    set_parameters(mixer, values)
    return mixer(data["x"]), data["y"]


def hyper_mixing(data: Arrays) -> tuple[Tensor, Tensor]:
    dim, heads, tied = data["query"].shape[-1], int(data["heads"]), bool(data["tied"])
    hidden, inner = (data[f"hyper_w1_gen_{layer}_weights"].shape[1] * heads for layer in ("fc2", "fc1"))
    longest = max(data["query"].shape[1], data["key"].shape[1])
    mixer = tokmix.create(
        "hypermixing", dim, causal=False, max_len=longest, tied=tied, heads=heads, hidden=hidden, inner=inner, bias=False
    ).double()
    values = {"output_norm.weight": data["layer_norm_weight"], "output_norm.bias": data["layer_norm_bias"]}
    for net, number in (("net_in", "1"), ("net_out", "2")):
        if net == "net_in" or not tied:
            values[f"{net}.inner"] = data[f"hyper_w{number}_gen_fc1_weights"].transpose(1, 2)
            values[f"{net}.outer"] = data[f"hyper_w{number}_gen_fc2_weights"].transpose(1, 2)
    set_parameters(mixer, values)
    real = data["query_real"]
    y = mixer(
        data["query"],
        tokmix.Segments.from_mask(real),
        keys=data["key"],
        values=data["value"],
        key_segments=tokmix.Segments.from_mask(data["key_real"]),
    )
    return y[real], data["y"][real]


@torch.no_grad()
def error(path: Path) -> float:
    data = load(path)
    if "query" in data:
        ours, theirs = hyper_mixing(data)
    elif "A1" in data:
        ours, theirs = hyper_mlp(data)
    else:
        raise ValueError(f"{path}: neither a HyperMixing nor a HyperMLP fixture; its arrays: {', '.join(data)}")
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


def main(paths: list[str]) -> int:
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    worst = 0.0
    for path in paths:
        try:
            found = error(Path(path))
        except (OSError, ValueError, KeyError) as problem:
            print(f"{path}: cannot be compared: {problem}", file=sys.stderr)
            return 2
        print(f"{path}  maximum absolute error {found:.3e}")
        worst = max(worst, found if found == found else float("inf"))
    return int(worst > BAR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
