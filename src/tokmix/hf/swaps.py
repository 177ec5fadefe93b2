"""Put mixers in place of attention in models of transformers: BERT, RoBERTa, DistilBERT, ModernBERT, ViT, GPT-2, Llama, Qwen and
what follows their shape.

    tokmix.hf.swap(model, "hypermixing(heads=4)", layers="every second")     a new mixer in every second layer
    tokmix.hf.swap(model, "linear_attention", init="attention")              the old q, k and v, read in another way

The swap is written into model.config.tokmix_swap: save_pretrained and from_pretrained (after `import tokmix.hf`) keep it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from tokmix.core import checks, stack
from tokmix.core.adapt import LastMask, swap_attention
from tokmix.core.mixer import create
from tokmix.hf.swapped import READERS, SwappedAttention, read_by, refuse_continuous_batching

# How the attention modules of transformers call what makes queries, keys and values.
JOINED = ("c_attn", "Wqkv", "qkv_proj", "query_key_value")
PROJECTIONS = (("query", "key", "value"), ("q_lin", "k_lin", "v_lin"), ("q_proj", "k_proj", "v_proj"), *((name,) for name in JOINED))
INITS = ("fresh", "values", "attention")
OUTPUTS = (
    "out_lin",
    "o_proj",
    "out_proj",
    "c_proj",
    "Wo",
    "dense",
)  # what attention modules of transformers call their output, where they own it


class Swap(TypedDict):
    """One call of `swap`, as config.json keeps it."""

    mixer: str
    layers: list[int]
    init: str
    max_len: int


def swap(
    model: nn.Module,
    mixer: str,
    *,
    layers: str | Sequence[int] = "all",
    init: str = "fresh",
    max_len: int | None = None,
    causal: bool | None = None,
) -> Any:
    """Change the model and return it.

    mixer    one mixer, written as in a stack: 'hypermixing(heads=4)'
    layers   'all', 'every second' (the second, the fourth, ...), 'first 4', 'last 4', or numbers from 0
    init     fresh: the mixer draws its weights; values: so it does, and a linear map after it begins as the layer's own value and output
             weights; attention: it reads the q, k and v that the layer's own weights make (attention, relu_attention,
             linear_attention without options), with the model's own masks, rotary codes and caches
    max_len  the longest sequence (default: what the model's config says)
    causal   for nn.Transformer's encoder alone; the attention of a Hugging Face model says it itself
    """
    checks.one_of("init", init, INITS)
    specs = stack.parse(mixer)
    if len(specs) != 1:
        raise ValueError(f"swap takes one mixer, not the stack {mixer!r}; call it once for each")
    if not isinstance(model, PreTrainedModel):
        return _torch_swap(model, mixer, layers, init, max_len, causal)
    if causal is not None:
        raise ValueError(f"causal={causal} is for torch's own encoder; {type(model).__name__} says itself whether it is causal")
    found = attention_layers(model)
    chosen = choose(layers, len(found))
    record: Swap = {"mixer": stack.unparse(specs), "layers": chosen, "init": init, "max_len": max_len or longest(model.config, model)}
    _apply(model, [record])
    written = list(getattr(model.config, "tokmix_swap", None) or [])
    model.config.tokmix_swap = [*written, record]
    return model


def attention_layers(model: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """(parent, name, attention) of each layer, bottom first; swapped ones too."""
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        raise ValueError(f"{type(model).__name__} has cross-attention, which swap does not know; it takes encoders and decoders alone")
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if _is_attention(child) and name != "encoder_attn"  # a decoder of an encoder-decoder keeps it, unused
    ]
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no attention that swap knows; it knows the shape of BERT, RoBERTa, DistilBERT, ModernBERT, ViT, "
            "GPT-2, Llama and Qwen"
        )
    return found


def _is_attention(module: nn.Module) -> bool:
    if isinstance(module, SwappedAttention):
        return True
    name = type(module).__name__
    if "Attention" not in name or any(other in name for other in ("Cross", "Linear", "Lightning")) or not hasattr(module, "config"):
        return False
    return any(all(hasattr(getattr(module, part, None), "weight") for part in names) for names in PROJECTIONS)


def choose(layers: str | Sequence[int], count: int) -> list[int]:
    if isinstance(layers, str):
        every = list(range(count))
        if layers == "every second" and count == 1:
            raise ValueError("layers='every second' finds no second layer: the model has one attention module; use 'all'")
        if layers in ("all", "every second"):
            return every if layers == "all" else every[1::2]
        match = re.fullmatch(r"(first|last) (\d+)", layers)
        if match is None:
            known = f"'all', 'every second', 'first N', 'last N' or a list of numbers from 0 to {count - 1}"
            raise ValueError(f"layers={layers!r} should be {known}")
        number = int(match[2])
        if not 1 <= number <= count:
            raise ValueError(f"layers={layers!r} asks for {number} of {count} layers")
        return every[:number] if match[1] == "first" else every[-number:]
    chosen = sorted(set(layers))
    if not chosen or any(not isinstance(layer, int) or not 0 <= layer < count for layer in chosen):
        raise ValueError(f"layers={list(layers)} should be numbers from 0 to {count - 1}")
    return chosen


def longest(config: PreTrainedConfig, model: nn.Module | None = None) -> int:
    """Tokens of a sequence, as the config says; of a model of images, as its table of positions does."""
    limit = getattr(config, "max_position_embeddings", None)
    if limit is not None:
        return int(limit)
    more = int(getattr(config, "num_register_tokens", 0))
    for name, table in () if model is None else model.named_parameters():
        if name.endswith("position_embeddings") and table.dim() == 3:
            return table.shape[1] + more
    size, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if isinstance(size, int) and isinstance(patch, int):
        return (size // patch) ** 2 + 1 + more
    raise ValueError(f"the config of {config.model_type} does not say how long a sequence may be: give max_len")


def _apply(model: PreTrainedModel, records: list[Swap]) -> None:
    if hasattr(model, "init_continuous_batching"):
        model.init_continuous_batching = refuse_continuous_batching  # type: ignore[assignment]
    for record in records:
        found, last = attention_layers(model), LastMask()
        spec = stack.parse(record["mixer"])[0]
        made = []
        for place, number in enumerate(record["layers"]):
            parent, name, old = found[number]
            if isinstance(old, SwappedAttention):
                raise ValueError(f"layer {number} holds a mixer already; swap the others")
            if record["init"] == "attention":
                if spec.name not in READERS or spec.options:
                    raise ValueError(
                        f"init='attention' keeps the layer's q, k and v, which {spec} cannot read; it works for {', '.join(READERS)}"
                    )
                continue
            made.append((parent, name, _made(spec, old, number, place, record, last)))
        for number in record["layers"] if record["init"] == "attention" else ():
            read_by(found[number][2], spec.name)
        for parent, name, module in made:  # all are made before any is put in place
            setattr(parent, name, module)


def _made(spec: stack.Spec, old: Any, number: int, place: int, record: Swap, last: LastMask) -> SwappedAttention:
    weight = next(getattr(old, names[0]) for names in PROJECTIONS if hasattr(old, names[0])).weight
    causal = bool(getattr(old, "is_causal", False))
    dim = int(old.config.hidden_size)
    mixer = create(spec.name, dim, causal=causal, max_len=record["max_len"], layer=place, **spec.options)
    for mode in ("padded", *(["step"] if causal else [])):
        if mode not in mixer.modes:
            raise mixer.lacks(mode)
    if weight.is_meta:
        mixer = mixer.to("meta")
    mixer = mixer.to(device=weight.device, dtype=weight.dtype if weight.dtype.is_floating_point else torch.get_default_dtype())
    layer = getattr(old, "layer_idx", None)
    made = SwappedAttention(mixer, old, number if layer is None else layer, last).train(old.training)
    if record["init"] == "values":
        made.out = value_map(old, dim)
    for part in made.modules():
        part._is_hf_initialized = True  # type: ignore[assignment]  # it has drawn its weights itself
    return made


@torch.no_grad()
def value_map(old: nn.Module, dim: int) -> nn.Linear:
    """The layer's value and output weights as one linear map: what its attention gives for a token that reads itself alone."""
    name = next(names[-1] for names in PROJECTIONS if hasattr(old, names[0]))
    values = getattr(old, name)
    output: Any = next((getattr(old, name) for name in OUTPUTS if hasattr(old, name)), nn.Identity())
    made = nn.Linear(dim, dim, device=values.weight.device, dtype=values.weight.dtype)
    if values.weight.is_meta:
        return made
    unit = torch.eye(dim + 1, dim, device=values.weight.device, dtype=values.weight.dtype)  # the last row is zero
    read = values(unit)
    size = getattr(old, "head_dim", getattr(old, "head_size", None))
    wanted = output.weight.shape[0 if name == "c_attn" else 1] if hasattr(output, "weight") else dim
    if name in JOINED and (name == "query_key_value" or not getattr(old, "multi_query", True)):  # q, k, v of a head, then those of the next
        read = read.unflatten(-1, (-1, 3, size))[..., 2, :].flatten(-2) if read.shape[-1] == 3 * wanted and size else read
    elif name in JOINED:  # all of q, all of k, all of v
        read = read[..., (read.shape[-1] + wanted) // 2 :]
    if read.shape[-1] != wanted:  # several heads read the same values
        if not isinstance(size, int) or wanted % read.shape[-1]:
            raise ValueError(f"init='values' cannot read the value weights of {type(old).__name__}; use init='fresh'")
        read = read.unflatten(-1, (-1, size)).repeat_interleave(wanted // read.shape[-1], dim=-2).flatten(-2)
    full = output(read)
    made.weight.copy_((full[:-1] - full[-1]).T)
    nn.init.zeros_(made.bias).add_(full[-1])
    return made


def _torch_swap(model: nn.Module, mixer: str, layers: object, init: str, max_len: int | None, causal: bool | None) -> nn.Module:
    """torch's own encoder layers."""
    if layers != "all" or init != "fresh":
        raise ValueError("torch's own layers are swapped all at once and afresh: leave layers and init out")
    if causal is None or max_len is None:
        raise ValueError("torch's own layers do not say causal and max_len: give both")
    return swap_attention(model, mixer, causal=causal, max_len=max_len)


def _post_init(original: Callable[[PreTrainedModel], None]) -> Callable[[PreTrainedModel], None]:
    def post_init(self: PreTrainedModel) -> None:
        """As transformers' own; then the swap that the config holds, before weights are loaded."""
        original(self)
        records = getattr(self.config, "tokmix_swap", None)
        if records and not any(isinstance(part, SwappedAttention) or _reads(part) for part in self.modules()):
            _apply(self, records)

    post_init.swaps = True  # type: ignore[attr-defined]
    return post_init


def _reads(module: nn.Module) -> bool:
    return str(getattr(getattr(module, "config", None), "_attn_implementation", "")).startswith("tokmix_")


if not getattr(PreTrainedModel.post_init, "swaps", False):  # from_pretrained builds models of any class: this is where all of them pass
    PreTrainedModel.post_init = _post_init(PreTrainedModel.post_init)  # type: ignore[method-assign]
