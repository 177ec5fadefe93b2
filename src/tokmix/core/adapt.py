"""A mixer in place of nn.MultiheadAttention, in torch's own Transformer layers.

Only this file inverts masks: in torch's padding masks True means ignore, in ours a real token. A mask that the mixer
cannot apply is an error.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tokmix.core import stack
from tokmix.core.mixer import Mixer, create
from tokmix.core.segments import Segments


class LastMask:
    """What was read from the latest mask: all layers of a model get the same one."""

    def __init__(self) -> None:
        self.mask: weakref.ref[Tensor] | None = None
        self.key: tuple[object, ...] = ()
        self.segments: Segments | None = None

    def of(self, mask: Tensor, read: Callable[..., Segments | None], *how: object) -> Segments | None:
        if mask.is_inference():  # such a tensor has no version that tells of a change
            return read(mask, *how)
        key = (mask._version, *how)
        if self.mask is None or self.mask() is not mask or self.key != key:
            self.segments = read(mask, *how)
            self.mask, self.key = weakref.ref(mask), key
        return self.segments

    def __reduce__(self) -> tuple[object, ...]:
        """A copy or pickle has no mask, since the mask belongs to one call."""
        return LastMask, ()


def _read_padding(mask: Tensor) -> Segments:
    return Segments.from_mask(~_blocked(mask, "key_padding_mask"))


def _blocked(mask: Tensor, what: str) -> Tensor:
    """A mask of torch as bool, True = hidden. Encoder layers of torch turn bool masks into numbers, 0 and -inf."""
    if mask.dtype == torch.bool:
        return mask
    blocked = mask == -torch.inf
    if bool((mask[~blocked] != 0).any()):
        raise ValueError(f"{what} has numbers other than 0 and -inf; a mixer can leave tokens out, but has no scores to add them to")
    return blocked


class MixerAttention(nn.Module):
    """A mixer with the call signature of nn.MultiheadAttention; in place of attention weights it returns None."""

    # With these two, torch's encoder layers call this module and do not take their fused path around it.
    _qkv_same_embed_dim = False
    in_proj_bias = None

    def __init__(self, mixer: Mixer, batch_first: bool, num_heads: int, last: LastMask | None = None):
        super().__init__()
        self.mixer, self.batch_first = mixer, batch_first
        self.embed_dim, self.num_heads = mixer.dim, num_heads
        self._last = last if last is not None else LastMask()

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        if query.is_nested:
            raise ValueError(f"mixer {self.mixer.kind!r} was given a nested tensor; pad it and pass a key_padding_mask")
        crossed = key is not query or value is not query
        self._check_mask(attn_mask, is_causal, query)
        x, keys, values = (self._batch_first(t) for t in (query, key, value))
        if key_padding_mask is not None and key_padding_mask.dim() == 1:
            key_padding_mask = key_padding_mask[None]
        segments = None if key_padding_mask is None else self._last.of(key_padding_mask, _read_padding)
        y = self.mixer(x, keys=keys, values=values, key_segments=segments) if crossed else self.mixer(x, segments)
        if query.dim() == 2:
            return y[0], None
        return (y if self.batch_first else y.transpose(0, 1)), None

    def _batch_first(self, x: Tensor) -> Tensor:
        """x as [B, T, D]; torch also takes one sequence without a batch, [T, D]."""
        if x.dim() == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _check_mask(self, attn_mask: Tensor | None, is_causal: bool, query: Tensor) -> None:
        if attn_mask is None and not is_causal:
            return
        if not self.mixer.causal:
            raise ValueError(
                f"mixer {self.mixer.kind!r} was made with causal=False and cannot honour an attention mask; swap it in with causal=True"
            )
        if attn_mask is None:
            return
        T = query.shape[-2] if query.dim() == 2 or self.batch_first else query.shape[0]
        causal = torch.ones(T, T, dtype=torch.bool, device=attn_mask.device).triu(1)
        blocked = _blocked(attn_mask, "attn_mask")
        if blocked.shape[-2:] != causal.shape or not bool((blocked == causal).all()):
            shape = list(attn_mask.shape)
            raise ValueError(f"mixer {self.mixer.kind!r} can honour only the plain causal mask, not this attn_mask of shape {shape}")


def swap_attention(module: nn.Module, mixer: str, *, causal: bool, max_len: int) -> nn.Module:
    """Replace each nn.MultiheadAttention inside an nn.TransformerEncoder, nn.TransformerDecoder, nn.Transformer, one of their layers or a
    module of your own by a mixer, which is written as in a stack ('hypermixing(heads=4)'). Changes the module and returns it.
    The attention's weights are lost, and so is the dropout of its scores, which mixers do not have. Decoder layers keep their
    cross-attention and get causal mixers; `causal` says whether the others are."""
    specs = stack.parse(mixer)
    if len(specs) != 1:
        raise ValueError(f"swap_attention takes one mixer for all layers, not the stack {mixer!r}")
    decodes = any(isinstance(part, nn.TransformerDecoderLayer) for part in module.modules())
    if decodes and not causal and not isinstance(module, nn.Transformer):
        raise ValueError("the self-attention of a torch decoder is causal: swap it with causal=True")
    last, spec = LastMask(), specs[0]

    def make(attention: nn.MultiheadAttention, layer: int, causal: bool) -> MixerAttention:
        if not attention._qkv_same_embed_dim:
            raise ValueError(
                f"attention with kdim={attention.kdim}, vdim={attention.vdim} and embed_dim={attention.embed_dim} cannot be swapped"
            )
        for name, set_so in (("add_bias_kv", attention.bias_k is not None), ("add_zero_attn", attention.add_zero_attn)):
            if set_so:
                raise ValueError(f"attention with {name}=True cannot be swapped: a mixer adds no token to the keys")
        made = create(spec.name, attention.embed_dim, causal=causal, max_len=max_len, layer=layer, **spec.options)
        made = made.to(attention.out_proj.weight)  # device and dtype
        return MixerAttention(made, attention.batch_first, attention.num_heads, last).train(attention.training)

    if isinstance(module, nn.MultiheadAttention):
        return make(module, 0, causal)
    attentions = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if isinstance(child, nn.MultiheadAttention) and not (isinstance(parent, nn.TransformerDecoderLayer) and name == "multihead_attn")
    ]
    if not attentions:
        raise ValueError(f"{type(module).__name__} has no nn.MultiheadAttention to swap")
    unique = {child: causal or isinstance(parent, nn.TransformerDecoderLayer) for parent, _, child in attentions}  # shared ones stay shared
    made = {child: make(child, layer, back) for layer, (child, back) in enumerate(unique.items())}  # an error leaves the module unchanged
    for parent, name, child in attentions:
        setattr(parent, name, made[child])
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoder):  # otherwise it turns padded batches into nested tensors in eval
            part.enable_nested_tensor = part.use_nested_tensor = False
    return module
