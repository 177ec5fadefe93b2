"""AdamW and Muon by parameter name. The only place of the repository that calls an optimizer's `step`.

    adamw   every parameter; vectors (biases, norms, gains) do not decay
    muon    the matrices inside of layers by Muon (Jordan 2024), everything else by AdamW

A step can be captured as a CUDA graph: with `capturable` the rate is a tensor on the device, and nothing is read back.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Group = dict[str, Any]  # parameters with the same rate and weight decay, in the form of torch's optimizers
ADAM = {"first": "exp_avg", "second": "exp_avg_sq"}  # name in a checkpoint -> name in the optimizer
MOMENTUM = "momentum"
ITERATION = (3.4445, -4.7750, 2.0315)  # coefficients of the Newton-Schulz iteration


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum. torch.optim.Muon reads its rate on the host, so a CUDA graph would repeat the first rate; this one also
    takes a tensor. It computes in float32 on a CPU, where bfloat16 is slow. The step is scaled to the size of AdamW's (Liu et al. 2025),
    so the same learning rate serves both."""

    def __init__(self, params: Iterable[nn.Parameter] | Iterable[Group], lr: float | Tensor, weight_decay: float, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            lr, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                mean = state["momentum_buffer"].lerp_(parameter.grad, 1 - momentum)
                direction = orthogonal(torch.lerp(parameter.grad, mean, momentum)).to(parameter.dtype)
                parameter.mul_(1 - lr * group["weight_decay"])
                parameter.sub_(direction * (lr * 0.2 * max(parameter.shape) ** 0.5))


def orthogonal(matrix: Tensor, steps: int = 5, eps: float = 1e-7) -> Tensor:
    """The nearest matrix with singular values near 1. [A, B] -> [A, B]"""
    a, b, c = ITERATION
    x = matrix.bfloat16() if matrix.is_cuda else matrix.float()
    tall = x.shape[0] > x.shape[1]
    x = x.mT if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Optimizers:
    """The optimizers of one model, and their state by the parameters' names."""

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        lr: float,
        *,
        kind: str = "adamw",
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        decay_vectors: bool = False,
        capturable: bool = False,
        scales: Mapping[str, float] | None = None,
    ):
        """scales: by name, the factor of a parameter's rate; 1 if not named."""
        self.named = list(named)
        device = self.named[0][1].device
        scale = {id(p): (scales or {}).get(name, 1.0) for name, p in self.named}
        self.rates = {of: torch.tensor(lr * of, device=device) for of in scale.values()} if capturable else {}
        hidden = [p for name, p in self.named if kind == "muon" and is_hidden_matrix(name, p)]
        chosen = set(map(id, hidden))
        rest = [p for _, p in self.named if id(p) not in chosen]
        decayed = [p for p in rest if decay_vectors or p.dim() >= 2]
        vectors = [p for p in rest if not (decay_vectors or p.dim() >= 2)]

        def groups(parameters: Sequence[nn.Parameter], decay: float) -> list[Group]:
            parts: dict[float, list[nn.Parameter]] = {}
            for parameter in parameters:
                parts.setdefault(scale[id(parameter)], []).append(parameter)
            return [
                {"params": own, "weight_decay": decay, "lr": self.rates.get(of, lr * of), "scale": of} for of, own in sorted(parts.items())
            ]

        adamw = torch.optim.AdamW(
            [*groups(decayed, weight_decay), *groups(vectors, 0.0)], lr, betas, fused=True, capturable=capturable and device.type == "cuda"
        )
        self.parts: list[torch.optim.Optimizer] = [adamw]
        if hidden:
            self.parts.append(Muon(groups(hidden, weight_decay), lr, weight_decay))

    def set_rate(self, lr: float | Tensor) -> None:
        """If capturable, the rate is a tensor on the device, so that a CUDA graph reads the new value."""
        for scale, rate in self.rates.items():
            rate.fill_(lr * scale)
        for part in self.parts if not self.rates else ():
            for group in part.param_groups:
                group["lr"] = lr * group["scale"]

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none)

    def update(self, skip: Tensor | None = None) -> None:
        """skip: 1 to leave out the step, else 0; only for AdamW."""
        for part in self.parts:
            if skip is not None:
                part.found_inf, part.grad_scale = skip, None  # type: ignore[attr-defined]
            part.step()

    # --- state ---------------------------------------------------------------------------------------------------------

    def tensors(self) -> list[Tensor]:
        """All state tensors, in a fixed order."""
        return [value for part in self.parts for state in part.state.values() for value in state.values()]

    def reset(self) -> None:
        """Reset the state in place, because a CUDA graph keeps addresses."""
        for tensor in self.tensors():
            tensor.zero_()

    def state(self) -> dict[str, Tensor]:
        """The state by names for a checkpoint: 'first.layers.0.weight' and so on."""
        found: dict[str, Tensor] = {}
        for part in self.parts:
            for name, parameter in self.named:
                state = part.state.get(parameter)
                if state:
                    kept = ADAM if "exp_avg" in state else {MOMENTUM: "momentum_buffer"}
                    found |= {f"{short}.{name}": state[own] for short, own in kept.items()}
        return found

    def allocate(self, names: Container[str], step: int) -> None:
        """Allocate the state of a checkpoint with tensors of these names; `state` returns the tensors to fill."""
        for part in self.parts:
            adam = isinstance(part, torch.optim.AdamW)
            for group in part.param_groups:
                for parameter in group["params"]:
                    if all(f"{short}.{self._name(parameter)}" in names for short in (ADAM if adam else (MOMENTUM,))):
                        done = {"step": torch.tensor(float(step), device=parameter.device)} if adam else {}
                        own = ADAM.values() if adam else ("momentum_buffer",)
                        part.state[parameter] = {**done, **{name: torch.zeros_like(parameter) for name in own}}

    def _name(self, parameter: nn.Parameter) -> str:
        return next(name for name, one in self.named if one is parameter)


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether it is a matrix inside a layer; embeddings and the output are not."""
    return name.startswith("layers.") and parameter.dim() == 2


def means(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Copies of the weights, for a running mean of them."""
    return [parameter.detach().clone() for parameter in parameters]
