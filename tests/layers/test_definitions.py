"""The mixers against deliberately naive loops over tokens, written from the papers' equations and nothing of ours."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import tokmix
from tests.cases import tokens


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return (x - x.mean()) / torch.sqrt(((x - x.mean()) ** 2).mean() + 1e-5) * weight + bias


def made(name: str, dim: int = 12, causal: bool = True, max_len: int = 16, layer: int = 0, **options: object) -> tokmix.Mixer:
    torch.manual_seed(3)
    mixer = tokmix.create(name, dim, causal=causal, max_len=max_len, layer=layer, **options).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return mixer.requires_grad_(False)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def row_of_weights(token: Tensor, net: torch.nn.Module, head: int) -> Tensor:
    hidden = token @ net.inner[head] + (net.inner_bias[head] if net.inner_bias is not None else 0)
    return gelu(hidden) @ net.outer[head] + (net.outer_bias[head] if net.outer_bias is not None else 0)


@pytest.mark.parametrize(
    "options", [{}, {"tied": False}, {"heads": 3, "hidden": 6}, {"norm": "none", "bias": False}, {"norm": "length", "power": 1.0}], ids=str
)
def test_hypermixing(options: dict) -> None:
    mixer, queries, keys, values = made("hypermixing", causal=False, **options), *(tokens(n, 12, seed=n) for n in (4, 7, 7))
    H, e = mixer.heads, 12 // mixer.heads
    net_out = mixer.net_in if mixer.tied else mixer.net_out
    expected = []
    for query in queries:
        parts = []
        for h in range(H):
            part = slice(h * e, (h + 1) * e)
            hidden = sum(torch.outer(row_of_weights(k[part], mixer.net_in, h), v[part]) for k, v in zip(keys, values, strict=True))
            if mixer.norm == "length":
                hidden = hidden / len(keys)
            parts.append(row_of_weights(query[part], net_out, h) @ gelu(hidden))
        y = torch.cat(parts)
        expected.append(layer_norm(y, mixer.output_norm.weight, mixer.output_norm.bias) if mixer.norm == "layer" else y)
    close(mixer(queries[None], keys=keys[None], values=values[None])[0], torch.stack(expected))


@pytest.mark.parametrize("shift", [1, 3])
def test_bidirectional_hypermixing_blends_each_token_with_its_neighbours_first(shift: int) -> None:
    mixer, plain = (made("hypermixing", causal=False, heads=2, **options) for options in ({"shift": shift}, {}))
    plain.load_state_dict({name: value for name, value in mixer.state_dict().items() if name != "blend"})
    x = tokens(7, 12)
    blended = torch.stack([x[t] + mixer.blend * ((partner(x, t, shift) + partner(x, t, -shift)) / 2 - x[t]) for t in range(7)])
    close(mixer(x[None])[0], plain(blended[None])[0])
    assert not torch.allclose(mixer(x[None]), plain(x[None]))
    close(mixer(x[None], keys=x[None])[0], mixer(x[None])[0])  # mixing with oneself, as cross mixing


@pytest.mark.parametrize("decay", ["none", "learned", "gate"])
@pytest.mark.parametrize("shift", [0, 2])
def test_causal_hypermixing(decay: str, shift: int) -> None:
    mixer = made("hypermixing", decay=decay, shift=shift, heads=2, hidden=8, power=0.5, tied=False)
    x, expected = tokens(21, 12), []
    hidden, count = torch.zeros(2, 4, 6, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for t in range(21):
        token = x[t]
        if shift:
            before = x[t - shift] if t >= shift else torch.zeros(12, dtype=torch.float64)
            token = token + mixer.blend * (before - token)
        parts = []
        for h in range(2):
            part = token[h * 6 : h * 6 + 6]
            logit = 0 if decay == "none" else mixer.decay_bias[h] + (token @ mixer.decay_weight[:, h] if decay == "gate" else 0)
            keep = 1 if decay == "none" else 1 / (1 + torch.exp(-logit))
            hidden[h] = keep * hidden[h] + torch.outer(row_of_weights(part, mixer.net_in, h), part)
            count[h] = keep * count[h] + 1
            parts.append(row_of_weights(part, mixer.net_out, h) @ gelu(hidden[h] / count[h] ** 0.5))
        expected.append(layer_norm(torch.cat(parts), mixer.output_norm.weight, mixer.output_norm.bias))
    close(mixer(x[None])[0], torch.stack(expected))


@pytest.mark.parametrize("decay", ["none", "learned", "gate"])
@pytest.mark.parametrize("block", [1, 4, 30])
def test_block_causal_hypermixing(decay: str, block: int) -> None:
    mixer = made("hypermixing", decay=decay, shift=1, heads=2, hidden=8, power=0.5, tied=False, block=block)
    x, expected = tokens(21, 12), []
    state, count = torch.zeros(2, 4, 6, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    border, border_count, kept = state, count, torch.ones(2, dtype=torch.float64)
    for t in range(21):
        token, parts = x[t] + mixer.blend * (partner(x, t, 1) - x[t]), []
        if t % block == 0:
            border, border_count, kept = state.clone(), count.clone(), torch.ones(2, dtype=torch.float64)
        for h in range(2):
            part = token[h * 6 : h * 6 + 6]
            logit = 0 if decay == "none" else mixer.decay_bias[h] + (token @ mixer.decay_weight[:, h] if decay == "gate" else 0)
            keep = 1 if decay == "none" else 1 / (1 + torch.exp(-logit))
            state[h] = keep * state[h] + torch.outer(row_of_weights(part, mixer.net_in, h), part)
            count[h], kept[h] = keep * count[h] + 1, keep * kept[h]
            scale, at_border = count[h] ** -0.5, max(border_count[h], torch.ones(())) ** -0.5
            far = kept[h] * scale / at_border * gelu(at_border * border[h])
            near = scale * (state[h] - kept[h] * border[h]) / 2  # what the own block has added, at the mean of GELU's slope
            parts.append(row_of_weights(part, mixer.net_out, h) @ (far + near))
        expected.append(layer_norm(torch.cat(parts), mixer.output_norm.weight, mixer.output_norm.bias))
    close(mixer(x[None])[0], torch.stack(expected))


@pytest.mark.parametrize("decay", ["none", "gate"])
def test_long_and_uneven_steps_go_on_where_blocks_do(decay: str) -> None:
    """Far more borders than one product of the scan takes, and rows whose blocks begin at different columns."""
    mixer = made("hypermixing", decay=decay, heads=2, hidden=8, block=3)
    x = tokens(3, 400, 12)
    whole = mixer(x)
    _, state = mixer.step(x[:, :4], mixer.init_state(3, x), tokmix.Segments.from_lengths([4, 2, 3], 4))
    begin = torch.tensor([4, 2, 3])
    for length in (1, 290, 1, 7, 90):
        at = begin[:, None] + torch.arange(length)
        y, state = mixer.step(x[torch.arange(3)[:, None], at], state)
        close(y, whole[torch.arange(3)[:, None], at])
        begin = begin + length


def partner(x: Tensor, t: int, shift: int) -> Tensor:
    return x[t - shift] if 0 <= t - shift < len(x) else torch.zeros_like(x[0])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("variant", ["ab", "vector", "matrix", "gate", "gate2", "fusion"])
@pytest.mark.parametrize("heads", [1, 3])
def test_hsm(variant: str, heads: int, causal: bool) -> None:
    mixer = made("hsm", causal=causal, variant=variant, heads=heads, layer=1)
    e, x = 12 // heads, tokens(11, 12)
    expected = torch.zeros(11, 12, dtype=torch.float64)
    for t in range(11):
        for h in range(heads):
            part = slice(h * e, (h + 1) * e)
            shift = 2 ** ((1 + h) % 4)  # max_len 16: four rungs
            own = x[t, part]
            others = [partner(x[:, part], t, shift)] + ([] if causal else [partner(x[:, part], t, -shift)])
            if variant in ("ab", "vector"):
                y = sum(w[h] * z for w, z in zip(mixer.weights, [own, *others], strict=True))
            elif variant == "matrix":
                y = sum(z @ w[h] for w, z in zip(mixer.weights, [own, *others], strict=True))
            elif variant == "fusion":
                y = gelu(torch.cat([own, *others]) @ mixer.weight[h]) @ mixer.outer[h]
            else:
                seen = own if variant == "gate" else torch.cat([own, *others])
                gate = 1 / (1 + torch.exp(-(seen @ mixer.weight[h] + mixer.bias[h])))
                y = gate * own + (1 - gate) * sum(others) / len(others)
            expected[t, part] = y
    close(mixer(x[None])[0], expected)


@pytest.mark.parametrize("name", ["hypermlp", "hyperglu"])
@pytest.mark.parametrize(
    "options", [{}, {"lag": False}, {"r1": False}, {"r2": False}, {"gates": False}, {"conv": 0}, {"qk": 8, "vo": 6}], ids=str
)
def test_hyper_mlp(name: str, options: dict) -> None:
    mixer = made(name, dim=16, heads=2, rank=3, **options)
    x, expected = tokens(9, 16), []

    def convolved(weight: Tensor) -> Tensor:
        return torch.stack([sum(weight[:, 3 - back] * partner(x, t, back) for back in range(4)) for t in range(9)])

    fed_k, fed_v = (convolved(mixer.conv_k.weight), convolved(mixer.conv_v.weight)) if mixer.conv else (x, x)
    k, v = fed_k @ mixer.k.weight.T, fed_v @ mixer.v.weight.T
    branches = 2 if name == "hyperglu" else 1
    e, f = mixer.qk // (2 * branches), mixer.vo // 2

    def sequence_mixed(z: Tensor, bank: torch.nn.Module | None, head: int, token: Tensor) -> Tensor:
        """z in lag order (or by position without lag layout); banks cut to the length that exists."""
        if bank is None:
            return z
        n, order = len(z), z if mixer.lag else z.flip(0)
        control = torch.sigmoid(token @ bank.control.weight.T + bank.control.bias)[head * 3 : head * 3 + 3]
        mixed = order * (1 + bank.diagonal[head, :n]) + ((order @ bank.down[head, :n]) * control) @ bank.up[head, :, :n]
        return mixed if mixer.lag else mixed.flip(0)

    for t in range(9):
        q = x[t] @ mixer.q.weight.T
        if mixer.gates:
            q = q * torch.sigmoid(x[t] @ mixer.left_gate.weight.T + mixer.left_gate.bias)

        def scores(head: int, t: int = t, q: Tensor = q) -> Tensor:
            part = slice(head * e, (head + 1) * e)
            return torch.stack([q[part] @ k[t - lag, part] for lag in range(t + 1)])

        outputs = []
        for h in range(2):
            gate = sequence_mixed(scores(h), mixer.r1, h, x[t])
            a = torch.relu(gate / gate.norm())
            if branches == 2:
                a = a * torch.log1p(torch.exp(sequence_mixed(scores(2 + h), mixer.r1, 2 + h, x[t])))
            w = sequence_mixed(a, mixer.r2, h, x[t])
            outputs.append(sum(w[lag] * v[t - lag, h * f : (h + 1) * f] for lag in range(t + 1)))
        o = torch.cat(outputs)
        if mixer.gates:
            o = o * torch.sigmoid(x[t] @ mixer.right_gate.weight.T + mixer.right_gate.bias)
        expected.append(o @ mixer.out.weight.T)
    close(mixer(x[None])[0], torch.stack(expected))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["attention", "relu_attention", "linear_attention"])
def test_attention_family(name: str, causal: bool) -> None:
    mixer, x, e = made(name, causal=causal, heads=3), tokens(70, 12), 4
    q, k, v = (x @ p.weight.T + p.bias for p in (mixer.q, mixer.k, mixer.v))
    expected = []
    for t in range(70):
        seen, parts = range(t + 1 if causal else 70), []
        for h in range(3):
            part = slice(h * e, (h + 1) * e)
            if name == "linear_attention":
                phi = lambda z: torch.nn.functional.elu(z) + 1
                weights = torch.stack([phi(q[t, part]) @ phi(k[s, part]) for s in seen])
                weights = weights / weights.sum()
            else:
                z = torch.stack([q[t, part] @ k[s, part] for s in seen])
                weights = (z / 2).softmax(0) if name == "attention" else torch.relu(z / z.norm())
            parts.append(sum(w * v[s, part] for w, s in zip(weights, seen, strict=True)))
        expected.append(torch.cat(parts) @ mixer.out.weight.T + mixer.out.bias)
    close(mixer(x[None])[0], torch.stack(expected))


@pytest.mark.parametrize("causal", [True, False])
def test_sliding_window(causal: bool) -> None:
    mixer, x = made("attention", causal=causal, heads=1, window=3), tokens(8, 12)
    q, k, v = (x @ p.weight.T + p.bias for p in (mixer.q, mixer.k, mixer.v))
    expected = []
    for t in range(8):
        seen = [s for s in range(8) if abs(s - t) < 3 and (s <= t or not causal)]
        weights = torch.stack([q[t] @ k[s] / 12**0.5 for s in seen]).softmax(0)
        expected.append(sum(w * v[s] for w, s in zip(weights, seen, strict=True)) @ mixer.out.weight.T + mixer.out.bias)
    close(mixer(x[None])[0], torch.stack(expected))


@pytest.mark.parametrize("scale", [0.0, -0.7])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_takes_any_scale(scale: float, causal: bool) -> None:
    mixer, x = made("attention", causal=causal, heads=1, scale=scale), tokens(1, 6, 12)[0]
    q, k, v = mixer.q(x), mixer.k(x), mixer.v(x)
    for t in range(6):
        seen = slice(0, t + 1 if causal else 6)
        weights = torch.exp(scale * k[seen] @ q[t])
        close(mixer(x[None])[0, t], mixer.out(weights / weights.sum() @ v[seen]))


def test_attention_with_normalised_queries_and_keys() -> None:
    """From the definition, head by head: scores do not change with the size of a token's query or key."""
    mixer, x = made("attention", causal=True, heads=3, qk_norm=True), tokens(7, 12)
    with torch.no_grad():
        for gain in (mixer.q_gain, mixer.k_gain):
            gain.uniform_(0.5, 2)
    q, k, v = (part(x).view(7, 3, 4).transpose(0, 1) for part in (mixer.q, mixer.k, mixer.v))
    unit = lambda part, gain: gain * part / (part.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    scores = unit(q, mixer.q_gain) @ unit(k, mixer.k_gain).mT / 4**0.5
    weights = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf).softmax(-1)
    close(mixer(x[None])[0], mixer.out((weights @ v).transpose(0, 1).flatten(1)))


def test_long_sequences_of_linear_attention_in_float16() -> None:
    torch.manual_seed(0)
    mixer, x = tokmix.create("linear_attention", 128, causal=False, max_len=64, heads=2).half(), torch.randn(1, 4096, 128).half()
    with torch.no_grad():
        y = mixer(x).double()
        torch.testing.assert_close(y, mixer.double()(x.double()), rtol=0, atol=2e-3)


def test_rotary_scores_depend_on_distance_alone() -> None:
    from tokmix.core.positions import rotary

    q, k = tokens(1, 1, 1, 7), tokens(1, 1, 1, 7, seed=1)
    at = lambda x, p: rotary(x, torch.tensor([p]))[0, 0, 0]
    close(at(q, 9) @ at(k, 4), at(q, 105) @ at(k, 100))
    assert not torch.allclose(at(q, 9) @ at(k, 4), at(q, 9) @ at(k, 5))


def test_fnet() -> None:
    x = tokens(7, 12)
    expected = torch.fft.fft2(x.to(torch.complex128)).real
    mixer = made("fnet", causal=False)
    close(mixer(x[None])[0], expected)
    close(mixer(torch.cat([x, x])[None], tokmix.Segments.from_lengths([[7, 7]]))[0, 7:], expected)


def test_fnet_of_a_long_padded_sequence_keeps_its_precision() -> None:
    mixer = made("fnet", causal=False)
    x = tokens(2, 5000, 12)
    y = mixer(x, tokmix.Segments.from_lengths([4999, 5000]))
    expected = torch.fft.fft2(x[0, :4999].to(torch.complex128)).real
    assert (y[0, :4999] - expected).abs().max() / expected.abs().max() < 1e-13


@pytest.mark.parametrize("causal", [True, False])
def test_gmlp(causal: bool) -> None:
    mixer, x = made("gmlp", causal=causal), tokens(6, 12)
    both = gelu(x @ mixer.inner.weight.T + mixer.inner.bias)
    kept, mixed = both[:, :12], torch.stack([layer_norm(row, mixer.norm.weight, mixer.norm.bias) for row in both[:, 12:]])
    gate = [sum(mixer.spatial[t, s] * mixed[s] for s in range(t + 1 if causal else 6)) + mixer.spatial_bias[t] for t in range(6)]
    close(mixer(x[None])[0], (kept * torch.stack(gate)) @ mixer.outer.weight.T + mixer.outer.bias)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("hidden", [5, 40])
def test_mlp_mixer(causal: bool, hidden: int) -> None:
    mixer, x = made("mlp_mixer", causal=causal, hidden=hidden), tokens(6, 12)
    expected = mixer.outer_bias[:6, None].repeat(1, 12)
    for unit in range(hidden):
        group = unit * 16 // hidden  # max_len 16
        read = [s for s in range(6) if s <= group or not causal]
        active = gelu(mixer.inner_bias[unit] + sum(mixer.inner[s, unit] * x[s] for s in read))
        for t in range(6):
            if t >= group or not causal:
                expected[t] += mixer.outer[t, unit] * active
    close(mixer(x[None])[0], expected)


def test_shared_vector() -> None:
    mixer, x = made("shared_vector", causal=False, norm="none"), tokens(6, 12)
    w1, w2 = mixer.w_in.repeat(6, 1), mixer.w_out.repeat(6, 1)
    close(mixer(x[None])[0], w2 @ gelu(w1.T @ x))


def test_hypermlp_rotates_queries_before_it_gates_them() -> None:
    """As the authors do. A gate is one number a channel, so it does not commute with the rotation of pairs of channels."""
    from tokmix.core.positions import rotary

    torch.manual_seed(0)
    options = {"heads": 2, "conv": 0, "r1": False, "r2": False}
    mixer = tokmix.create("hypermlp", 8, causal=True, max_len=6, rotary=True, qk=8, **options).double()  # type: ignore[arg-type]
    x, at, split = tokens(1, 6, 8), torch.arange(6), lambda z: z.unflatten(-1, (2, -1)).transpose(1, 2)
    q = rotary(split(mixer.q(x)), at) * split(mixer.left_gate(x).sigmoid())
    scores = (q @ rotary(split(mixer.k(x)), at).mT).tril()
    active = torch.relu(scores / scores.norm(dim=-1, keepdim=True))
    o = (active @ split(mixer.v(x))).transpose(1, 2).flatten(2) * mixer.right_gate(x).sigmoid()
    torch.testing.assert_close(mixer(x), mixer.out(o), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["hypermlp", "hyperglu", "attention", "relu_attention"])
def test_short_convolutions_start_as_the_identity(name: str) -> None:
    make = lambda **more: tokmix.create(name, 8, causal=True, max_len=6, conv=3, **more)
    x = tokens(2, 6, 8).float()
    assert torch.equal(make().conv_k(x), x) and torch.equal(make().conv_v(x), x)
    old = make(conv_init="normal").conv_k.weight.detach()
    assert 0.005 < float(old.std()) < 0.05 and float(old.abs().max()) < 0.2
