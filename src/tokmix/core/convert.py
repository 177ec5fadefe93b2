"""Weights of the authors' own layers -> our mixers, by parameter name.

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
    """A mixer to make, and the value of each of its parameters."""

    name: str
    dim: int
    causal: bool
    max_len: int
    options: Options
    values: dict[str, Tensor]
    used: set[str]


def convert(layer: nn.Module | Mapping[str, Tensor], *, max_len: int | None = None, prefix: str = "") -> Mixer:
    """layer   the module, or its state dict
    max_len   the longest sequence, where the weights do not say it (HyperMixing without a position code)
    prefix    of the layer's names in a larger state dict: 'encoder.layers.0.mixing.'

    A weight that is missing, or that no part of the mixer takes, is an error. The mixer has the dtype and device of the weights."""
    given = layer.state_dict() if isinstance(layer, nn.Module) else dict(layer)
    given = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    if "hyper.w1_gen.fc1_weights" in given:
        plan = _hypermixing(given, max_len)
    elif "c_proj.weight" in given and "q.weight" in given:
        plan = _hypermlp(given)
    else:
        known = "HyperMixing (hyper.w1_gen.fc1_weights, ...) and HyperMLP (q.weight, c_proj.weight, ...)"
        raise ValueError(f"no layer that convert knows: {', '.join(sorted(given)[:4]) or 'no names'}; it knows {known}; is prefix right?")
    over = sorted(given.keys() - plan.used)
    if over:
        raise ValueError(f"convert has no place for {', '.join(over[:3])}: this is another version of the layer")
    mixer = create(plan.name, plan.dim, causal=plan.causal, max_len=plan.max_len, **plan.options)  # type: ignore[arg-type]
    first = next(iter(plan.values.values()))
    mixer = mixer.to(device=first.device, dtype=first.dtype)
    mixer.load_state_dict({name: value.detach().to(first.dtype) for name, value in plan.values.items()})
    return mixer


def _taken(given: Mapping[str, Tensor], name: str, used: set[str]) -> Tensor:
    if name not in given:
        raise ValueError(f"the layer lacks {name!r}")
    used.add(name)
    return given[name]


def _hypermixing(given: Mapping[str, Tensor], max_len: int | None) -> _Plan:
    used: set[str] = set()
    first = given["hyper.w1_gen.fc1_weights"]  # [H, inner / H, dim / H]
    heads, dim = first.shape[0], first.shape[0] * first.shape[2]
    inner, hidden = heads * first.shape[1], heads * given["hyper.w1_gen.fc2_weights"].shape[1]
    bias, norm = "hyper.w1_gen.fc1_biases" in given, "layer_norm.weight" in given
    second = [name.replace("w1_gen", "w2_gen") for name in given if name.startswith("hyper.w1_gen.")]
    tied = all(name not in given or torch.equal(given[name], given[name.replace("w2_gen", "w1_gen")]) for name in second)
    values: dict[str, Tensor] = {}
    for net, theirs in (("net_in", "w1_gen"), ("net_out", "w2_gen")):
        if tied and net == "net_out":
            used |= {name for name in second if name in given}
            continue
        for ours, part in (("inner", "fc1"), ("outer", "fc2")):
            values[f"{net}.{ours}"] = _taken(given, f"hyper.{theirs}.{part}_weights", used).transpose(1, 2)
            if bias:
                values[f"{net}.{ours}_bias"] = _taken(given, f"hyper.{theirs}.{part}_biases", used)
    if norm:
        values |= {f"output_norm.{part}": _taken(given, f"layer_norm.{part}", used) for part in ("weight", "bias")}
    code = _position_table(given, dim, values, used)
    if code is None and max_len is None:
        raise ValueError("HyperMixing without a position code does not say how long a sequence may be: give max_len")
    options: Options = {"tied": tied, "heads": heads, "hidden": hidden, "inner": inner, "bias": bias, "norm": "layer" if norm else "none"}
    if code is not None:
        values["code.table"] = code
        options["position"] = "learned"
    return _Plan("hypermixing", dim, False, code.shape[0] if code is not None else int(max_len or 0), options, values, used)


def _position_table(given: Mapping[str, Tensor], dim: int, values: dict[str, Tensor], used: set[str]) -> Tensor | None:
    """The code that is added to the hypernetworks' input, [max_len, dim]; None where there is none."""
    if "positional_encoding.pe" in given:  # SpeechBrain's
        return _taken(given, "positional_encoding.pe", used)[0]
    if "token_information.pe" not in given:
        return None
    # The authors' code begins at position 1, and the token is multiplied by the root of the width: W (s x + p) = (s W) (x + p / s).
    scale = math.sqrt(dim)
    for net in ("net_in", "net_out"):
        if f"{net}.inner" in values:
            values[f"{net}.inner"] = values[f"{net}.inner"] * scale
    return _taken(given, "token_information.pe", used)[0, 1:] / scale


def _hypermlp(given: Mapping[str, Tensor]) -> _Plan:
    used: set[str] = set()
    values = {f"{ours}.weight": _taken(given, f"{theirs}.weight", used) for ours, theirs in zip("qkv", "qkv", strict=True)}
    values["out.weight"] = _taken(given, "c_proj.weight", used)
    if "op.mix.U" not in given or "op2.mix.U" not in given:
        raise ValueError("the layer lacks op.mix.U or op2.mix.U: convert takes HyperMLP with both sequence mixers")
    score_heads, heads = given["op.mix.U"].shape[0], given["op2.mix.U"].shape[0]
    if score_heads not in (heads, 2 * heads) or given["op.mix.U"].dim() != 3:
        raise ValueError(f"op.mix.U of shape {list(given['op.mix.U'].shape)} does not fit {heads} heads: convert takes banks for each head")
    for ours, theirs, control in (("r1", "op.mix", "control1"), ("r2", "op2.mix", "control2")):
        # Theirs end with the current token; ours begin with it.
        values[f"{ours}.down"] = _taken(given, f"{theirs}.U", used).flip(1)
        values[f"{ours}.up"] = _taken(given, f"{theirs}.Vt", used).flip(2)
        values[f"{ours}.diagonal"] = _taken(given, f"{theirs}.d", used).flip(1)
        values |= {f"{ours}.control.{part}": _taken(given, f"{control}.{part}", used) for part in ("weight", "bias")}
    conv = given["conv1.conv.weight"].shape[2] if "conv1.conv.weight" in given else 0
    for ours, theirs in (("conv_k", "conv1"), ("conv_v", "conv2")) if conv else ():
        values[f"{ours}.weight"] = _taken(given, f"{theirs}.conv.weight", used)[:, 0]
    gates = "left_gate.weight" in given
    for name in ("left_gate", "right_gate") if gates else ():
        values |= {f"{name}.{part}": _taken(given, f"{name}.{part}", used) for part in ("weight", "bias")}
    length, rank = given["op.mix.U"].shape[1:]
    options: Options = {
        "heads": heads,
        "rank": rank,
        "qk": values["q.weight"].shape[0],
        "vo": values["v.weight"].shape[0],
        "conv": conv,
        "gates": gates,
    }
    return _Plan("hyperglu" if score_heads > heads else "hypermlp", values["q.weight"].shape[1], True, length, options, values, used)
