"""Converts the authors' own layers to our mixers, by parameter name.

HyperMixing of its authors and of SpeechBrain     hyper.w1_gen.fc1_weights, ..., layer_norm.weight
HyperMLP and HyperGLU of their authors            q.weight, c_proj.weight, op.mix.U, control1.weight, ...
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokmix.core.mixer import Mixer, create

Options = dict[str, bool | int | str | None]


@dataclass(frozen=True)
class _Plan:
    """The mixer to create, the value of each of its parameters, and the names of the weights that were used."""

    name: str
    dim: int
    causal: bool
    max_len: int
    options: Options
    values: dict[str, Tensor]
    used: set[str]


def convert(layer: nn.Module | Mapping[str, Tensor], *, max_len: int | None = None, prefix: str = "") -> Mixer:
    """layer   the module, or its state dict
    max_len   the longest sequence, if the weights do not determine it (HyperMixing without a position code)
    prefix    of the layer's names in a larger state dict: 'encoder.layers.0.mixing.'

    A weight that is missing, or that the mixer does not have, is an error. The mixer has the dtype and device of the weights."""
    weights = layer.state_dict() if isinstance(layer, nn.Module) else dict(layer)
    weights = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    if "hyper.w1_gen.fc1_weights" in weights:
        plan = _hypermixing(weights, max_len)
    elif "c_proj.weight" in weights and "q.weight" in weights:
        plan = _hypermlp(weights)
    else:
        known = "HyperMixing (hyper.w1_gen.fc1_weights, ...) and HyperMLP (q.weight, c_proj.weight, ...)"
        raise ValueError(f"unknown layer with {', '.join(sorted(weights)[:4]) or 'no weights'}; known: {known}; is prefix right?")
    unused = sorted(weights.keys() - plan.used)
    if unused:
        raise ValueError(f"convert does not know {', '.join(unused[:3])}: this is another version of the layer")
    mixer = create(plan.name, plan.dim, causal=plan.causal, max_len=plan.max_len, **plan.options)  # type: ignore[arg-type]
    first = next(iter(plan.values.values()))
    mixer = mixer.to(device=first.device, dtype=first.dtype)
    mixer.load_state_dict({name: value.detach().to(first.dtype) for name, value in plan.values.items()})
    return mixer


def _take(weights: Mapping[str, Tensor], name: str, used: set[str]) -> Tensor:
    if name not in weights:
        raise ValueError(f"the layer lacks {name!r}")
    used.add(name)
    return weights[name]


def _hypermixing(weights: Mapping[str, Tensor], max_len: int | None) -> _Plan:
    used: set[str] = set()
    first = weights["hyper.w1_gen.fc1_weights"]  # [H, inner / H, dim / H]
    heads, dim = first.shape[0], first.shape[0] * first.shape[2]
    inner, hidden = heads * first.shape[1], heads * weights["hyper.w1_gen.fc2_weights"].shape[1]
    bias, norm = "hyper.w1_gen.fc1_biases" in weights, "layer_norm.weight" in weights
    second = [name.replace("w1_gen", "w2_gen") for name in weights if name.startswith("hyper.w1_gen.")]
    tied = all(name not in weights or torch.equal(weights[name], weights[name.replace("w2_gen", "w1_gen")]) for name in second)
    values: dict[str, Tensor] = {}
    for net, theirs in (("net_in", "w1_gen"), ("net_out", "w2_gen")):
        if tied and net == "net_out":
            used |= {name for name in second if name in weights}
            continue
        for ours, part in (("inner", "fc1"), ("outer", "fc2")):
            values[f"{net}.{ours}"] = _take(weights, f"hyper.{theirs}.{part}_weights", used).transpose(1, 2)
            if bias:
                values[f"{net}.{ours}_bias"] = _take(weights, f"hyper.{theirs}.{part}_biases", used)
    if norm:
        values |= {f"output_norm.{part}": _take(weights, f"layer_norm.{part}", used) for part in ("weight", "bias")}
    code = _position_table(weights, dim, values, used)
    if code is None and max_len is None:
        raise ValueError("HyperMixing without a position code does not determine the longest sequence: give max_len")
    options: Options = {"tied": tied, "heads": heads, "hidden": hidden, "inner": inner, "bias": bias, "norm": "layer" if norm else "none"}
    if code is not None:
        values["code.table"] = code
        options["position"] = "learned"
    return _Plan("hypermixing", dim, False, code.shape[0] if code is not None else int(max_len or 0), options, values, used)


def _position_table(weights: Mapping[str, Tensor], dim: int, values: dict[str, Tensor], used: set[str]) -> Tensor | None:
    """The position code that is added to the hypernetworks' input, [max_len, dim]; None if there is none."""
    if "positional_encoding.pe" in weights:  # SpeechBrain's
        return _take(weights, "positional_encoding.pe", used)[0]
    if "token_information.pe" not in weights:
        return None
    # The authors' positions begin at 1, and they multiply the token by s, the root of the width: W (s x + p) = (s W) (x + p / s).
    scale = math.sqrt(dim)
    for net in ("net_in", "net_out"):
        if f"{net}.inner" in values:
            values[f"{net}.inner"] = values[f"{net}.inner"] * scale
    return _take(weights, "token_information.pe", used)[0, 1:] / scale


def _hypermlp(weights: Mapping[str, Tensor]) -> _Plan:
    used: set[str] = set()
    values = {f"{name}.weight": _take(weights, f"{name}.weight", used) for name in "qkv"}
    values["out.weight"] = _take(weights, "c_proj.weight", used)
    if "op.mix.U" not in weights or "op2.mix.U" not in weights:
        raise ValueError("the layer lacks op.mix.U or op2.mix.U: convert takes HyperMLP with both sequence mixers")
    score_heads, heads = weights["op.mix.U"].shape[0], weights["op2.mix.U"].shape[0]
    if score_heads not in (heads, 2 * heads) or weights["op.mix.U"].dim() != 3:
        raise ValueError(f"op.mix.U of shape {list(weights['op.mix.U'].shape)} does not fit {heads} heads: each head needs its own bank")
    for ours, theirs, control in (("r1", "op.mix", "control1"), ("r2", "op2.mix", "control2")):
        # Their banks end with the current token; ours begin with it.
        values[f"{ours}.down"] = _take(weights, f"{theirs}.U", used).flip(1)
        values[f"{ours}.up"] = _take(weights, f"{theirs}.Vt", used).flip(2)
        values[f"{ours}.diagonal"] = _take(weights, f"{theirs}.d", used).flip(1)
        values |= {f"{ours}.control.{part}": _take(weights, f"{control}.{part}", used) for part in ("weight", "bias")}
    conv = weights["conv1.conv.weight"].shape[2] if "conv1.conv.weight" in weights else 0
    for ours, theirs in (("conv_k", "conv1"), ("conv_v", "conv2")) if conv else ():
        values[f"{ours}.weight"] = _take(weights, f"{theirs}.conv.weight", used)[:, 0]
    gates = "left_gate.weight" in weights
    for name in ("left_gate", "right_gate") if gates else ():
        values |= {f"{name}.{part}": _take(weights, f"{name}.{part}", used) for part in ("weight", "bias")}
    length, rank = weights["op.mix.U"].shape[1:]
    options: Options = {
        "heads": heads,
        "rank": rank,
        "qk": values["q.weight"].shape[0],
        "vo": values["v.weight"].shape[0],
        "conv": conv,
        "gates": gates,
    }
    return _Plan("hyperglu" if score_heads > heads else "hypermlp", values["q.weight"].shape[1], True, length, options, values, used)
