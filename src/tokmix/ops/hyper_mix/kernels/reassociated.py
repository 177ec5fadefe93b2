"""Kernels of HyperMixing with heads, with the generated matrices re-associated away.

With H_i = GELU(x U_i + b_i), W_i = H_i V_i + c_i and G the hidden state after its GELU:

    state    M = H_1ᵀ v, m = 1ᵀ v          [e, e] and [e] per sequence and head, summed on chip over a piece of a sequence
    middle   W_1ᵀ v = V_1ᵀ M + c_1 m,  Q = V_2 G,  r = c_2 G                              a few small products: `hidden_state`
    output   z = W_2 G = H_2 Q + r                                        H_2 recomputed from x, never stored

A bias is always the last row of its matrix: [M; m], [Q; r] and their gradients are [e + 1, e] blocks. The backward
kernels recompute H_i from x. Sequences are cut into pieces (`tokmix.core.token_offsets.Chunks`); a piece and a head make a
program, and sums over pieces are added up after, without atomics.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokmix.ops.kernels.rounding import operand, store_rounded


@triton.jit
def normal_tail(x, KIND: tl.constexpr):
    """The normal distribution beyond |x|, and its density at x. For 16-bit numbers two to the power of a polynomial, fitted
    for the least error of GELU and its slope (off by 1.2e-6 at most), which is a fraction of the work of erf."""
    density = tl.exp2(x * x * -0.7213475204444817 - 1.3257480647361592)
    size = tl.abs(x)
    if tl.float32 == KIND:
        tail = 0.5 - 0.5 * tl.erf(size * 0.7071067811865476)
    else:
        p = -4.925065627e-04 * size + 7.22961702e-03
        p = p * size - 5.22208314e-02
        p = p * size - 4.595263592e-01
        p = p * size - 1.15101807
        tail = tl.exp2(p * size - 1.000003284)
    return tail, density


@triton.jit
def gelu(x, KIND: tl.constexpr):
    tail, _ = normal_tail(x, KIND)
    return tl.maximum(x, 0.0) - tl.abs(x) * tail


@triton.jit
def gelu_and_slope(x, KIND: tl.constexpr):
    tail, density = normal_tail(x, KIND)
    return tl.maximum(x, 0.0) - tl.abs(x) * tail, tl.where(x >= 0, 1.0 - tail, tail) + x * density


@triton.jit
def add_rows(total, x, ones, PRECISION: tl.constexpr):
    """total [16, C] plus the sum of x's rows in each of its rows: a product with ones is faster than a reduction."""
    return tl.dot(ones, x, total, input_precision=PRECISION)


@triton.jit
def piece(TABLE, T, size, per_sequence):
    """This program's sequence, the flat row its piece begins at, and how many rows it has."""
    at = tl.program_id(0)
    if TABLE is None:
        sequence = at // per_sequence
        begin = sequence * T + (at % per_sequence) * size
        end = tl.minimum(begin + size, (sequence + 1) * T)
    else:
        sequence = tl.load(TABLE + at * 3)
        begin = tl.load(TABLE + at * 3 + 1)
        end = tl.load(TABLE + at * 3 + 2)
    return sequence, begin, end - begin


@triton.jit
def start(begin, T, batch_stride, row_stride):
    """Offset of a flat row of a [B, T, D] tensor. A piece never crosses from one row of the batch into the next."""
    b = begin // T
    return b.to(tl.int64) * batch_stride + (begin - b * T).to(tl.int64) * row_stride


@triton.jit
def square(W, head, cols, E: tl.constexpr, KIND: tl.constexpr):
    """A head's matrix from [H, E, E], zero beyond E."""
    there = (cols < E)[:, None] & (cols < E)[None, :]
    return operand(tl.load(W + head * E * E + cols[:, None] * E + cols[None, :], mask=there, other=0.0), KIND)


@triton.jit
def block(P, sequence, sequences, head, cols, E: tl.constexpr, ROWS: tl.constexpr, KIND: tl.constexpr):
    """A sequence's and head's matrix from [H, ROWS, S, E], and its last row in float32 where ROWS is E + 1."""
    at = P + (sequence.to(tl.int64) + head * ROWS * sequences) * E + cols[None, :]
    step = sequences * E
    there = (cols < E)[:, None] & (cols < E)[None, :]
    matrix = operand(tl.load(at + cols[:, None].to(tl.int64) * step, mask=there, other=0.0), KIND)
    if ROWS > E:
        last = tl.load(at + tl.cast(E, tl.int64) * step, mask=(cols < E)[None, :], other=0.0).to(tl.float32)
    else:
        last = tl.zeros([1, cols.shape[0]], tl.float32)
    return matrix, last


@triton.jit
def channel(W, head, cols, E: tl.constexpr):
    """A head's part of a vector [H, E] in float32, [1, C]; zero if there is no such vector."""
    if W is None:
        values = tl.zeros([1, cols.shape[0]], tl.float32)
    else:
        values = tl.load(W + head * E + cols, mask=cols < E, other=0.0).to(tl.float32)[None, :]
    return values


@triton.jit
def store_block(P, matrix, last, head, heads, cols, E: tl.constexpr, ROWS: tl.constexpr):
    """This piece's sums into [C, H, ROWS, E]; last [16, C], by add_rows, becomes the last row where ROWS is E + 1."""
    at = P + (tl.program_id(0) * heads + head).to(tl.int64) * (ROWS * E)
    there = (cols < E)[:, None] & (cols < E)[None, :]
    tl.store(at + cols[:, None] * E + cols[None, :], matrix, mask=there)
    if ROWS > E:
        tl.store(at + E * E + cols, tl.sum(last, 0) / 16, mask=cols < E)


@triton.jit
def state(
    X, V, U, B, TABLE, PART, T, size, per_sequence, x_batch, x_row, v_batch, v_row,
    E: tl.constexpr, ROWS: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """[H_1ᵀ v; 1ᵀ v] of one piece and head."""
    head = tl.program_id(1)
    _, begin, count = piece(TABLE, T, size, per_sequence)
    cols = tl.arange(0, EP)
    X += start(begin, T, x_batch, x_row) + head * E
    if V is not None:
        V += start(begin, T, v_batch, v_row) + head * E
    u = square(U, head, cols, E, KIND)
    bias = channel(B, head, cols, E)
    ones = operand(tl.full([16, BM], 1.0, tl.float32), KIND)
    total = tl.zeros([EP, EP], tl.float32)
    column = tl.zeros([16, EP], tl.float32)
    for i in range(0, count, BM):
        rows = (i + tl.arange(0, BM))[:, None]
        there = (rows < count) & (cols < E)[None, :]
        x = operand(tl.load(X + rows * x_row + cols[None, :], mask=there, other=0.0), KIND)
        if V is None:
            v = x
        else:
            v = operand(tl.load(V + rows * v_row + cols[None, :], mask=there, other=0.0), KIND)
        h = operand(gelu(tl.dot(x, u, input_precision=PRECISION) + bias, KIND), KIND)
        total = tl.dot(tl.trans(h), v, total, input_precision=PRECISION)
        if ROWS > E:
            column = add_rows(column, v, ones, PRECISION)
    store_block(PART, total, column, head, tl.num_programs(1), cols, E, ROWS)


@triton.jit
def add_pieces(
    PART, FIRST, OUT, per_sequence, heads, sequences, E: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr
):
    """Sums over pieces: PART [C, H, ROWS, E] -> OUT [H, ROWS, S, E]. AT_ONCE: pieces loaded together."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    if FIRST is None:
        low, high = sequence * per_sequence, (sequence + 1) * per_sequence
    else:
        low, high = tl.load(FIRST + sequence), tl.load(FIRST + sequence + 1)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    there = at < ROWS * E
    total = tl.zeros([AT_ONCE, BLOCK], tl.float32)
    for i in range(low, high, AT_ONCE):
        pieces = i + tl.arange(0, AT_ONCE)
        rows = (pieces * heads + head).to(tl.int64)[:, None] * (ROWS * E) + at[None, :]
        total += tl.load(PART + rows, mask=(pieces < high)[:, None] & there[None, :], other=0.0)
    to = ((head * ROWS + at // E).to(tl.int64) * sequences + sequence) * E + at % E
    store_rounded(OUT + to, tl.sum(total, 0), there)


@triton.jit
def output(
    X, U, B, Q, TABLE, Z, REAL, T, size, per_sequence, sequences, x_batch, x_row,
    H: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """H_2 Q + r of one piece and head. REAL, if given, is set to 1 for the rows that were written."""
    head = tl.program_id(1)
    sequence, begin, count = piece(TABLE, T, size, per_sequence)
    cols = tl.arange(0, EP)
    X += start(begin, T, x_batch, x_row) + head * E
    Z += begin.to(tl.int64) * (H * E) + head * E
    u = square(U, head, cols, E, KIND)
    q, r = block(Q, sequence, sequences, head, cols, E, ROWS, KIND)
    bias = channel(B, head, cols, E)
    for i in range(0, count, BM):
        rows = (i + tl.arange(0, BM))[:, None]
        there = (rows < count) & (cols < E)[None, :]
        x = operand(tl.load(X + rows * x_row + cols[None, :], mask=there, other=0.0), KIND)
        h = operand(gelu(tl.dot(x, u, input_precision=PRECISION) + bias, KIND), KIND)
        z = tl.dot(h, q, input_precision=PRECISION) + r
        store_rounded(Z + rows * (H * E) + cols[None, :], z, there)
        if REAL is not None:
            tl.store(REAL + begin + rows, tl.full([BM, 1], 1.0, tl.float32), mask=rows < count)


@triton.jit
def output_backward(
    X, DZ, U, B, Q, TABLE, DQ, DU, T, size, per_sequence, sequences, x_batch, x_row, dz_batch, dz_row, DX,
    H: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From dz: this piece's and head's part of [dQ; dr] and [dU_2; db_2], and dx so far. DX may be DZ itself."""
    head = tl.program_id(1)
    sequence, begin, count = piece(TABLE, T, size, per_sequence)
    cols = tl.arange(0, EP)
    X += start(begin, T, x_batch, x_row) + head * E
    DZ += start(begin, T, dz_batch, dz_row) + head * E
    DX += begin.to(tl.int64) * (H * E) + head * E
    u = square(U, head, cols, E, KIND)
    q, _ = block(Q, sequence, sequences, head, cols, E, ROWS, KIND)
    bias = channel(B, head, cols, E)
    ones = operand(tl.full([16, BM], 1.0, tl.float32), KIND)
    dq = tl.zeros([EP, EP], tl.float32)
    du = tl.zeros([EP, EP], tl.float32)
    dr = tl.zeros([16, EP], tl.float32)
    db = tl.zeros([16, EP], tl.float32)
    for i in range(0, count, BM):
        rows = (i + tl.arange(0, BM))[:, None]
        there = (rows < count) & (cols < E)[None, :]
        x = operand(tl.load(X + rows * x_row + cols[None, :], mask=there, other=0.0), KIND)
        dz = operand(tl.load(DZ + rows * dz_row + cols[None, :], mask=there, other=0.0), KIND)
        h, slope = gelu_and_slope(tl.dot(x, u, input_precision=PRECISION) + bias, KIND)
        dp = operand(tl.dot(dz, tl.trans(q), input_precision=PRECISION) * slope, KIND)
        dq = tl.dot(tl.trans(operand(h, KIND)), dz, dq, input_precision=PRECISION)
        du = tl.dot(tl.trans(x), dp, du, input_precision=PRECISION)
        db = add_rows(db, dp, ones, PRECISION)
        if ROWS > E:
            dr = add_rows(dr, dz, ones, PRECISION)
        dx = tl.dot(dp, tl.trans(u), input_precision=PRECISION)
        store_rounded(DX + rows * (H * E) + cols[None, :], dx, there)
    store_block(DQ, dq, dr, head, H, cols, E, ROWS)
    store_block(DU, du, db, head, H, cols, E, E + 1)


@triton.jit
def state_backward(
    X, V, U, B, DM, TABLE, DX, DV, DU, T, size, per_sequence, sequences, x_batch, x_row, v_batch, v_row,
    H: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """From [dM; dm]: this piece's and head's [dU_1; db_1], dv, and the rest of dx, which is added to dx."""
    head = tl.program_id(1)
    sequence, begin, count = piece(TABLE, T, size, per_sequence)
    cols = tl.arange(0, EP)
    X += start(begin, T, x_batch, x_row) + head * E
    to = begin.to(tl.int64) * (H * E) + head * E
    if V is not None:
        V += start(begin, T, v_batch, v_row) + head * E
    u = square(U, head, cols, E, KIND)
    dm, dlast = block(DM, sequence, sequences, head, cols, E, ROWS, KIND)
    bias = channel(B, head, cols, E)
    ones = operand(tl.full([16, BM], 1.0, tl.float32), KIND)
    du = tl.zeros([EP, EP], tl.float32)
    db = tl.zeros([16, EP], tl.float32)
    for i in range(0, count, BM):
        rows = (i + tl.arange(0, BM))[:, None]
        there = (rows < count) & (cols < E)[None, :]
        x = operand(tl.load(X + rows * x_row + cols[None, :], mask=there, other=0.0), KIND)
        if V is None:
            v = x
        else:
            v = operand(tl.load(V + rows * v_row + cols[None, :], mask=there, other=0.0), KIND)
        out = to + rows * (H * E) + cols[None, :]
        dx = tl.load(DX + out, mask=there, other=0.0).to(tl.float32)
        h, slope = gelu_and_slope(tl.dot(x, u, input_precision=PRECISION) + bias, KIND)
        dp = tl.dot(v, tl.trans(dm), input_precision=PRECISION) * slope
        dp = operand(dp, KIND)
        db = add_rows(db, dp, ones, PRECISION)
        du = tl.dot(tl.trans(x), dp, du, input_precision=PRECISION)
        dx = tl.dot(dp, tl.trans(u), dx, input_precision=PRECISION)
        dv = tl.dot(operand(h, KIND), dm, input_precision=PRECISION) + dlast
        if V is None:
            dx += dv
        else:
            store_rounded(DV + out, dv, there)
        store_rounded(DX + out, dx, there)
    store_block(DU, du, db, head, H, cols, E, E + 1)


@triton.jit
def tied_backward(
    X, V, DZ, U, B, Q, DM, TABLE, DX, DV, DU, T, size, per_sequence, sequences, x_batch, x_row, v_batch, v_row, dz_batch, dz_row,
    H: tl.constexpr, E: tl.constexpr, ROWS: tl.constexpr, EP: tl.constexpr, BM: tl.constexpr,
    KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """For one net in both places: from dz and [dM; dm] this piece's and head's [dU; db], dx and dv. DX may be DZ itself."""
    head = tl.program_id(1)
    sequence, begin, count = piece(TABLE, T, size, per_sequence)
    cols = tl.arange(0, EP)
    X += start(begin, T, x_batch, x_row) + head * E
    DZ += start(begin, T, dz_batch, dz_row) + head * E
    to = begin.to(tl.int64) * (H * E) + head * E
    if V is not None:
        V += start(begin, T, v_batch, v_row) + head * E
    u = square(U, head, cols, E, KIND)
    q, _ = block(Q, sequence, sequences, head, cols, E, ROWS, KIND)
    dm, dlast = block(DM, sequence, sequences, head, cols, E, ROWS, KIND)
    bias = channel(B, head, cols, E)
    ones = operand(tl.full([16, BM], 1.0, tl.float32), KIND)
    du = tl.zeros([EP, EP], tl.float32)
    db = tl.zeros([16, EP], tl.float32)
    for i in range(0, count, BM):
        rows = (i + tl.arange(0, BM))[:, None]
        there = (rows < count) & (cols < E)[None, :]
        x = operand(tl.load(X + rows * x_row + cols[None, :], mask=there, other=0.0), KIND)
        dz = operand(tl.load(DZ + rows * dz_row + cols[None, :], mask=there, other=0.0), KIND)
        if V is None:
            v = x
        else:
            v = operand(tl.load(V + rows * v_row + cols[None, :], mask=there, other=0.0), KIND)
        h, slope = gelu_and_slope(tl.dot(x, u, input_precision=PRECISION) + bias, KIND)
        dh = tl.dot(dz, tl.trans(q), input_precision=PRECISION)
        dh = tl.dot(v, tl.trans(dm), dh, input_precision=PRECISION)
        dp = operand(dh * slope, KIND)
        du = tl.dot(tl.trans(x), dp, du, input_precision=PRECISION)
        db = add_rows(db, dp, ones, PRECISION)
        dv = tl.dot(operand(h, KIND), dm, input_precision=PRECISION) + dlast
        out = to + rows * (H * E) + cols[None, :]
        if V is None:
            dx = tl.dot(dp, tl.trans(u), dv, input_precision=PRECISION)
        else:
            dx = tl.dot(dp, tl.trans(u), input_precision=PRECISION)
            store_rounded(DV + out, dv, there)
        store_rounded(DX + out, dx, there)
    store_block(DU, du, db, head, H, cols, E, E + 1)
