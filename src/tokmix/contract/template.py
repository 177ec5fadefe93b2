"""The template of `tokmix new-mixer NAME`: a causal mixer with a step, which passes `tokmix check`."""

from __future__ import annotations

import keyword
import re
from pathlib import Path

TEMPLATE = '''"""NAME: a running mean with a learned decay. Change `advance` and `cost`; then: tokmix check FILE

Use it:  tokmix train data.csv --out run --import FILE --stack 'NAME*2, attention'   (or `import STEM` in Python)
"""

import torch
from torch import Tensor, nn

import tokmix


@tokmix.register("NAME")
class CLASS(tokmix.RowMixer):
    """y_t = gain * s_t, where s_t = decay * s_(t-1) + (1 - decay) * x_t"""

    modes = frozenset({"causal", "padded", "packed", "step"})
    order = "T"  # how time grows with the length: "T", "T log T", "T^2"

    # Options are keyword arguments with a type and a default: NAME(start=0.5) in a stack.
    def __init__(self, dim: int, *, causal: bool, max_len: int, layer: int = 0, start: float = 0.9):
        super().__init__(dim, causal=causal, max_len=max_len, layer=layer)
        if not 0 < start < 1:
            raise ValueError(f"start={start} should be between 0 and 1")
        self.decay = nn.Parameter(torch.full((dim,), start).logit())
        self.gain = nn.Parameter(torch.ones(dim))

    def mix(self, x: Tensor, rows: tokmix.Rows | None) -> Tensor:
        """x [S, L, D]: each row one sequence from column 0 on, zeros behind its end. -> [S, L, D]"""
        return self.advance(x, self.empty_state(x.shape[0], x), rows)[0]

    def empty_state(self, batch: int, like: Tensor) -> dict[str, Tensor]:
        """Before the first token. The batch comes first in every tensor."""
        return {"sum": like.new_zeros(batch, self.dim)}

    def advance(self, x: Tensor, state: dict[str, Tensor], rows: tokmix.Rows | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The next tokens x [B, L, D] of each row, rows.lengths of them (all L where rows is None) -> (y, the new state)."""
        decay = self.decay.sigmoid().to(x.dtype)
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)
        past = decay ** steps[:, None]  # [L, D]: what is left of the state after each token
        behind = steps[:, None] - steps  # [L, L]
        kernel = torch.where(behind[..., None] >= 0, decay ** behind.clamp(min=0)[..., None], 0)  # [L, L, D]
        y = (kernel * ((1 - decay) * x)[:, None]).sum(2) + past * state["sum"][:, None]
        if rows is None:
            return self.gain.to(x.dtype) * y, {"sum": y[:, -1]}
        last = (rows.lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, self.dim)
        end = torch.where(rows.lengths[:, None] > 0, y.gather(1, last)[:, 0], state["sum"])  # a row without tokens keeps its state
        return self.gain.to(x.dtype) * y, {"sum": end}

    def cost(self, length: int) -> tokmix.Cost:
        """Of one sequence, forward: matrix products as torch counts them (there are none here), the rest about, and the state."""
        return tokmix.Cost(matmul=0, pointwise=4 * length * length * self.dim, state=self.dim)
'''


def write(name: str, folder: Path) -> Path:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ValueError(f"mixer name {name!r} should be lower-case letters, digits and _, such as my_mixer")
    from tokmix.core.mixer import mixer_class, mixers

    if name in mixers():
        raise ValueError(f"mixer name {name!r} is taken by {mixer_class(name).__module__}: choose another one")
    path = folder / f"{name}.py"
    if path.exists():
        raise ValueError(f"{path} exists: nothing is overwritten; choose another name or --out")
    if not folder.is_dir():
        raise ValueError(f"no folder {str(folder)!r}")
    title = "".join(part.capitalize() for part in name.split("_"))
    path.write_text(
        TEMPLATE.replace("NAME", name).replace("CLASS", title).replace("FILE", path.name).replace("STEM", name), encoding="utf-8"
    )
    return path
