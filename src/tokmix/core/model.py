"""One model for all mixers: embed -> layers -> norm -> head.

ids [B, T] ── embedding + position ──> x [B, T, D] ── layer ── ... ── layer ── norm ──> head
    lm, mlm   [B, T, vocab]
    classify  [S, classes], one row a sequence (B of them unless packed), after pooling
    regress   [S]
    tag       [B, T, classes], one row a token
    span      [B, T, 2], the scores of a token as the first and as the last of an answer
    none      [B, T, D]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tokmix.core import checks, stack
from tokmix.core.block import LAYOUTS, NORMS, FeedForward, Layer, make_norm
from tokmix.core.features import LONGEST, Features
from tokmix.core.mixer import NORM, Cost, State, check_options, create, in_place
from tokmix.core.offload import with_weights
from tokmix.core.pooling import POOLINGS, last_token, pool, pooled_width
from tokmix.core.positions import PositionCode, count, within
from tokmix.core.segments import Rows, Segments, check_segments

HEADS = ("classify", "regress", "tag", "span", "lm", "mlm", "none")
Watch = Callable[[Tensor], None]  # called with x [B, T, D] after the embedding and after each layer
POSITIONS = ("none", "learned", "sinusoidal")


@dataclass(frozen=True)
class ModelConfig:
    """stack              the mixers, bottom first: 'hsm*3, attention(heads=8)'
    causal             whether a token sees only the tokens before it; lm needs it
    max_len            the longest sequence; a bound where weights have a size that depends on it, a hint for HSM's shifts
    classes            outputs of the heads classify and tag
    layout             pre, serialized, post, rezero, parallel (drawn in block.py)
    norm               layer or rms
    feed_forward       inner width; 'auto' = 2 dim; 0 or None = no feed-forward (token mixing only)
    feed_forward_kind  gelu or swiglu
    dropout            at each layer's input
    positions          code added to the embedding: sinusoidal, learned, none
    pooling            of the tokens of each sequence, for classify and regress: mean, max, mean_max (both, concatenated) or first
    tie                lm and mlm: the output matrix is the embedding
    embedding_std      standard deviation of the embedding's initial weights. A look-up multiplies by its inverse, so tokens start at
                       scale 1. AdamW moves tokens faster if it is small, and a tied output matrix should be small as well.
    ladder             the mixers that count for the place of a mixer: kind = those of the same name, stack = all
    ngrams, buckets    embeddings of n-grams up to this n, hashed into so many buckets. Only for models that see both directions.
    separator          the id between the two texts of a pair, whose tokens are then compared (features.py). The same limit applies.
    """

    stack: str
    dim: int
    vocab: int
    head: str
    causal: bool
    max_len: int
    classes: int = 2
    layout: str = "pre"
    norm: str = "layer"
    feed_forward: int | str | None = "auto"
    feed_forward_kind: str = "gelu"
    dropout: float = 0.0
    positions: str = "sinusoidal"
    pooling: str = "mean"
    tie: bool = True
    embedding_std: float = 0.02
    ladder: str = "kind"
    ngrams: int = 1
    buckets: int = 32768
    separator: int | None = None

    def __post_init__(self) -> None:
        for name in ("dim", "vocab", "max_len", "classes"):
            checks.at_least(name, getattr(self, name), 1)
        for name, choices in (
            ("head", HEADS),
            ("layout", LAYOUTS),
            ("norm", NORMS),
            ("feed_forward_kind", FeedForward.kinds),
            ("positions", POSITIONS),
            ("pooling", POOLINGS),
            ("ladder", ("kind", "stack")),
        ):
            checks.one_of(name, getattr(self, name), choices)
        for name in ("causal", "tie"):
            checks.typed(name, getattr(self, name), bool)
        checks.typed("embedding_std", self.embedding_std, float)
        if not 0 < self.embedding_std < float("inf"):
            raise ValueError(f"embedding_std={self.embedding_std} should be a finite number above 0")
        checks.typed("dropout", self.dropout, float)
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout} should be at least 0 and below 1")
        self._check_features()
        if self.head == "lm" and not self.causal:
            raise ValueError("head='lm' predicts the next token and needs causal=True; a model of both directions has head='mlm'")
        width = 2 * self.dim if self.feed_forward == "auto" else 0 if self.feed_forward is None else self.feed_forward
        checks.at_least("feed_forward", width, 0)
        object.__setattr__(self, "feed_forward", width)
        specs = stack.parse(self.stack)
        for spec in specs:
            check_options(spec.name, spec.options)
        object.__setattr__(self, "stack", stack.unparse(specs))

    def _check_features(self) -> None:
        checks.at_least("ngrams", self.ngrams, 1)
        checks.at_least("buckets", self.buckets, 1)
        if self.ngrams > LONGEST:
            raise ValueError(f"ngrams={self.ngrams} should be at most {LONGEST}")
        checks.typed("separator", self.separator, int | None)
        if self.separator is not None and not 0 <= self.separator < self.vocab:
            raise ValueError(f"separator={self.separator} is not an id of the vocabulary of {self.vocab}")
        if self.causal and self.has_features:
            raise ValueError("ngrams and separator are for models that see both directions: leave them out where causal=True")

    @property
    def has_features(self) -> bool:
        return self.ngrams > 1 or self.separator is not None


class Model(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.dim)
        self.position_code = PositionCode(config.positions, config.dim, config.max_len)  # type: ignore[arg-type]
        self.features = Features(config.dim, config.ngrams, config.buckets, config.separator) if config.has_features else None
        self.layers: Sequence[Layer] = nn.ModuleList(self._layers())  # type: ignore[assignment]
        # A post-norm layer has a norm at its end.
        self.norm = nn.Identity() if config.layout == "post" else make_norm(config.norm, config.dim)
        self.head = self._head()
        # Tokens start at scale 1, which is the scale of the position code.
        self.embedding_scale = 1 / config.embedding_std
        if config.embedding_std != 1:  # torch's own initialisation has 1
            nn.init.normal_(self.embedding.weight, std=config.embedding_std)

    @property
    def _tied(self) -> bool:
        return self.config.tie and self.config.head in ("lm", "mlm")

    def _layers(self) -> list[Layer]:
        config, layers, places = self.config, [], Counter[str]()
        for depth, spec in enumerate(stack.parse(config.stack)):
            place = depth if config.ladder == "stack" else places[spec.name]
            places[spec.name] += 1
            mixer = create(spec.name, config.dim, causal=config.causal, max_len=config.max_len, layer=place, **spec.options)
            assert isinstance(config.feed_forward, int)
            fed = FeedForward(config.dim, config.feed_forward, config.feed_forward_kind) if config.feed_forward else None
            layers.append(LAYOUTS[config.layout](mixer, fed, config.norm, config.dropout))
        return layers

    def _head(self) -> nn.Module:
        config = self.config
        if config.head == "none" or self._tied:
            return nn.Identity()
        outputs = {"classify": config.classes, "regress": 1, "tag": config.classes, "span": 2}.get(config.head, config.vocab)
        return nn.Linear(self._pooled_width if config.head in ("classify", "regress") else config.dim, outputs, bias=config.head != "lm")

    @property
    def _pooled_width(self) -> int:
        return pooled_width(self.config.dim, self.config.pooling)

    def forward(self, ids: Tensor, segments: Segments | None = None, at: Tensor | None = None) -> Tensor:
        """at [n]: indices of tokens in the flattened batch. Then only their outputs are computed, [n, vocab]."""
        x = self.hidden(ids, segments)
        if at is not None:
            return self.finish(x.flatten(0, 1)[at])
        return self.finish(x, None if segments is None else segments.to(ids.device))

    def hidden(self, ids: Tensor, segments: Segments | None = None, watch: Watch | None = None) -> Tensor:
        """The input of the head: ids [B, T], or vectors [B, T, D] in place of the embedding's rows -> [B, T, D]."""
        segments = self._checked(ids, segments)
        x = self._embed(ids, segments, within(segments, ids))
        if watch is not None:
            watch(x)
        for layer in self.layers:
            x = layer(x, segments)
            if watch is not None:
                watch(x)
        return self.norm(x)

    def _checked(self, ids: Tensor, segments: Segments | None) -> Segments | None:
        if ids.dim() == 3 and ids.dtype.is_floating_point:
            if ids.shape[2] != self.config.dim or self.features is not None:
                raise ValueError(
                    f"vectors of shape {list(ids.shape)} should be [B, T, {self.config.dim}], for a model without ngrams and separator"
                )
        elif ids.dim() != 2 or ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype == torch.bool:
            raise ValueError(f"ids should be whole numbers of shape [B, T], not {ids.dtype} of shape {list(ids.shape)}")
        if segments is not None:
            check_segments(segments)
        if segments is not None and segments.mask.shape != ids.shape[:2]:
            raise ValueError(f"segments of shape {list(segments.mask.shape)} do not fit ids of shape {list(ids.shape)}")
        longest = ids.shape[1] if segments is None else segments.longest
        if longest > 1 and self.limit is not None and longest > self.limit:
            raise ValueError(f"a sequence of {longest} tokens is longer than this model takes: max_len={self.limit}")
        return None if segments is None else segments.to(ids.device)

    @property
    def device(self) -> torch.device:
        """The device it runs on, also if its weights are offloaded."""
        return with_weights(self.embedding, lambda: self.embedding.weight.device)

    @property
    def limit(self) -> int | None:
        """The longest sequence it accepts; None if no weight has a size that depends on the length."""
        own = [self.config.max_len] if self.config.positions == "learned" else []
        limits = [layer.mixer.limit for layer in self.layers if layer.mixer.limit is not None]
        return min(own + limits, default=None)

    def _embed(self, ids: Tensor, segments: Segments | None, positions: Tensor) -> Tensor:
        if ids.dim() == 3:  # vectors, whose padding may hold NaN
            x = ids if segments is None else Rows(segments.mask, segments.positions).zero(ids)
            return x * self.embedding_scale + self.position_code(positions, x.dtype)
        ids = ids.long()  # the hashes of n-grams need 64 bits
        if segments is not None:  # ids at padding may be outside the vocabulary
            ids = torch.where(segments.mask, ids, 0)
        x = self.embedding_of(ids) * self.embedding_scale
        if self.features is not None:
            x = x + self.features(ids, segments)
        return x + self.position_code(positions, x.dtype)

    def embedding_of(self, ids: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return self.embedding(ids)
        try:
            return self.embedding(ids)
        except IndexError:  # raised on a CPU only; a check on a GPU would stall it
            vocab = self.embedding.num_embeddings
            wrong = ids[(ids < 0) | (ids >= vocab)]
            if not len(wrong):
                raise
            raise ValueError(f"token id {int(wrong[0])} is not in the vocabulary of {vocab}") from None

    def finish(self, x: Tensor, segments: Segments | None = None) -> Tensor:
        """The output of the head for normed x [B, T, D]."""
        head = self.config.head
        if head in ("classify", "regress"):
            logits = self.head(self.pool(x, segments))
            return logits.squeeze(-1) if head == "regress" else logits
        if not self._tied:
            return self.head(x)
        return with_weights(self.embedding, lambda: nn.functional.linear(x, self.embedding.weight))

    def pool(self, x: Tensor, segments: Segments | None) -> Tensor:
        """As `pooling.pool`, with the config's pooling."""
        return pool(x, segments, self.config.pooling)

    def init_state(self, batch: int) -> State:
        """The state before the first token, for `step`: those of the layers, and the position of each row."""
        like = with_weights(self.embedding, lambda: self.embedding.weight[:0])
        position = torch.zeros(batch, dtype=torch.long, device=like.device)
        return {"position": position, "layers": [layer.mixer.init_state(batch, like) for layer in self.layers]}

    def step(self, ids: Tensor, state: State, segments: Segments | None = None, *, last: bool = False) -> tuple[Tensor, State]:
        """The next tokens of each row, ids [B, T] -> (logits [B, T, vocab], new state). Padding does not change a row's state.
        last: only the logits of each row's last token, [B, 1, vocab]; those of a row of padding are undefined."""
        x, state = self.advance(ids, state, segments)
        return self.finish(last_token(x, segments) if last and x.shape[1] > 1 else x), state

    def advance(self, ids: Tensor, state: State, segments: Segments | None = None, *, watch: Watch | None = None) -> tuple[Tensor, State]:
        """As `step`, without the head: -> (normed x [B, T, D], new state)."""
        if self.config.head not in ("lm", "none") or not self.config.causal:
            raise ValueError(
                f"step needs a causal model with head 'lm' or 'none', not head={self.config.head!r}, causal={self.config.causal}"
            )
        segments = self._checked(ids, segments)
        position = state["position"]
        if position.shape[0] != ids.shape[0]:
            raise ValueError(f"a state of {position.shape[0]} rows does not fit ids of shape {list(ids.shape)}")
        new = ids.shape[1] if segments is None else segments.mask.sum(1)
        x = self._embed(ids, segments, self._next_positions(ids, position, segments))
        if watch is not None:
            watch(x)
        after = []
        for layer, layer_state in zip(self.layers, state["layers"], strict=True):
            x, layer_state = layer.step(x, layer_state, segments)
            after.append(layer_state)
            if watch is not None:
                watch(x)
        return self.norm(x), {"position": position + new, "layers": after}

    def _next_positions(self, ids: Tensor, position: Tensor, segments: Segments | None) -> Tensor:
        """Positions of tokens that continue rows at `position` [B]: [B, T], or [T] if the host knows one start for all rows."""
        allowed = in_place()
        if segments is None and allowed is not None and allowed.position is not None:
            self.check_room(allowed.position + ids.shape[1])
            return torch.arange(allowed.position, allowed.position + ids.shape[1], device=ids.device)
        steps = count(ids.shape[1], None, ids.device) if segments is None else segments.positions
        return self._within(position[:, None] + steps, segments, fixed=allowed is not None and allowed.fixed)

    def _within(self, positions: Tensor, segments: Segments | None, fixed: bool) -> Tensor:
        """The positions, checked against the length of a learned code; padding may lie beyond it. A caller with fixed room has
        checked before, since a CUDA graph cannot read a position."""
        if self.config.positions != "learned" or torch.compiler.is_compiling() or positions.numel() == 0 or fixed:
            return positions
        real = positions if segments is None else torch.where(segments.mask, positions, 0)
        self.check_room(int(real.max()) + 1)
        return real

    def check_room(self, length: int) -> None:
        if self.config.positions == "learned" and length > self.config.max_len:
            raise ValueError(f"a sequence of {length} tokens is longer than this model takes: max_len={self.config.max_len}")

    def cost(self, length: int) -> Cost:
        """The cost of a forward pass over one sequence of that length. The embedding is a look-up and costs nothing."""
        config = self.config
        total = sum((layer.cost(length) for layer in self.layers), Cost())
        if config.head in ("lm", "mlm"):
            total += Cost(2 * length * config.dim * config.vocab)
        elif config.head in ("tag", "span"):
            total += Cost(2 * length * config.dim * (config.classes if config.head == "tag" else 2))
        elif config.head in ("classify", "regress"):
            total += Cost(2 * self._pooled_width * (config.classes if config.head == "classify" else 1), length * self._pooled_width)
        norm = 0 if config.layout == "post" else NORM * length * config.dim
        position = 1 if config.causal and config.head in ("lm", "none") else 0
        return total + Cost(0, norm, position)

    def reach(self) -> int | None:
        """How many tokens back the whole stack sees; None = everything."""
        reaches = [layer.mixer.reach() for layer in self.layers]
        return None if None in reaches else sum(reach for reach in reaches if reach is not None)

    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())
