"""Rules about decoding: `step` in any chunks gives the result of the whole sequence."""

from __future__ import annotations

import torch

from tokmix.contract.cases import DIM, MAX_LEN, Case, lay_out, leaves, tokens
from tokmix.contract.rules import LENGTHS, alone, close, hold, is_default, refuses, rule, steps, zero
from tokmix.core.segments import Segments


@rule("ragged chunks by step agree with the whole", steps)
def chunks_agree(case: Case) -> None:
    mixer = case.make()
    sequences, outputs = alone(mixer)
    done, state = [0] * len(LENGTHS), mixer.init_state(len(LENGTHS), sequences[0])
    for chunk, flip in enumerate([False, True, False, True, False, False, True]):
        counts = [min(n - d, (row * 2 + chunk * 3) % 6) for row, (n, d) in enumerate(zip(LENGTHS, done, strict=True))]
        ids = Segments.from_lengths(counts, 6).ids
        ids = ids.flip(1) if flip else ids  # new tokens are at the left of some chunks, at the right of others
        given = [s[:, d : d + c] for s, d, c in zip(sequences, done, counts, strict=True)]
        y, state = mixer.step(lay_out(given, ids), state, Segments(ids))
        expected = [o[:, d : d + c] for o, d, c in zip(outputs, done, counts, strict=True)]
        close(y[ids != 0], torch.cat(expected, dim=1)[0], f"chunk {chunk}, {counts} new tokens a row", "token channel")
        zero(y, ids == 0, f"chunk {chunk}: the output at padding")
        done = [d + c for d, c in zip(done, counts, strict=True)]
    assert done[:2] == [7, 12] and sum(done) > 35, "the chunks should have covered most tokens"


@rule("token by token agrees, and states can be reordered", steps)
def tokens_agree(case: Case) -> None:
    mixer, x = case.make(), tokens(3, 11, DIM)
    whole = mixer(x)
    first, state = mixer.step(x[:, :4], mixer.init_state(3, x))
    close(first, whole[:, :4], "the first 4 tokens by step", "row token channel")
    order = torch.tensor([2, 0, 0])  # as beam search does
    state = torch.utils._pytree.tree_map(lambda leaf: leaf[order], state)
    for t in range(4, 11):
        y, state = mixer.step(x[order, t : t + 1], state)
        close(y, whole[order, t : t + 1], f"token {t} by step, rows of the state reordered", "row token channel")


@rule("padding leaves a state as it was", steps)
def padding_keeps_the_state(case: Case) -> None:
    mixer, x = case.make(), tokens(2, 9, DIM)
    _, before = mixer.step(x[:, :5], mixer.init_state(2, x))
    kept = [leaf.clone() for leaf in leaves(before)]
    _, after = mixer.step(torch.full_like(x, torch.nan), before, Segments(torch.zeros(2, 9, dtype=torch.long)))
    same = all(torch.equal(a, b) for a, b in zip(leaves(after), kept, strict=True))
    hold(same, "a step of padding alone changed the state")
    _, one = mixer.step(x[:, 5:8], before, Segments.from_lengths([3, 0]))
    again, _ = mixer.step(x[:, 5:9], one, Segments.from_lengths([0, 4]))
    close(again[1], mixer(x)[1, 5:9], "a row that waited for another one", "token channel")
    same = all(torch.equal(a, b) for a, b in zip(leaves(before), kept, strict=True))
    hold(same, "step changed the state it was given; it should return a new one")


@rule("a row may end at max_len while others go on", steps)
def rows_end_apart(case: Case) -> None:
    """Padding is then beyond the last position that a length-sized weight has."""
    mixer, lengths = case.make(), [MAX_LEN, MAX_LEN - 9]
    sequences = [tokens(1, n, DIM, seed=n) for n in lengths]
    first, rest = ([s[:, :-2] for s in sequences], [sequences[0][:, -2:], sequences[1][:, -2:]])
    ids = Segments.from_lengths([s.shape[1] for s in first]).ids
    _, state = mixer.step(lay_out(first, ids), mixer.init_state(2, first[0]), Segments(ids))
    ids = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]])
    y, _ = mixer.step(lay_out(rest, ids), state, Segments(ids))
    close(y[ids != 0], torch.cat([mixer(s)[0, -2:] for s in sequences]), f"the last two tokens of {lengths}", "token channel")


@rule("a state of other rows is refused", lambda case: steps(case) and is_default(case))
def refuses_other_states(case: Case) -> None:
    mixer, x = case.make(), tokens(3, 2, DIM)
    for rows in (1, 2):
        state = mixer.init_state(rows, x)
        if leaves(state):
            refuses(lambda state=state: mixer.step(x, state), f"a state of {rows} rows does not fit", f"a state of {rows} rows for 3")  # type: ignore[misc]


@rule("cost states the size of the state")
def state_has_its_size(case: Case) -> None:
    mixer = case.make()
    if not case.causal:
        hold(mixer.cost(9).state == 0, f"cost(9).state is {mixer.cost(9).state}, and a mixer of both directions keeps none")
        return
    if not case.steps:
        return
    x = tokens(3, 9, DIM)
    _, state = mixer.step(x, mixer.init_state(3, x))
    size = sum(leaf.numel() for leaf in leaves(state))
    hold(
        size == 3 * mixer.cost(9).state,
        f"3 rows keep {size:,} numbers after 9 tokens, and cost(9).state says {mixer.cost(9).state:,} a row",
    )
    for leaf in leaves(state):
        hold(leaf.shape[0] == 3, f"a tensor of the state of 3 rows has shape {list(leaf.shape)}: the batch comes first")
