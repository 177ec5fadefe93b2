"""`tokmix bench ops`: each op, forward and with its backward pass, next to plain torch, torch.compile of it, and attention.

Each op is first checked in the same run and dtype: result and every gradient against float64. An op that fails is not timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from bench.speed import rule
from bench.speed.cases import Case, Size, cases, draw
from bench.speed.clock import Call
from bench.speed.rivals import Rival, attention_cores, linear_core
from bench.speed.rule import Body, Tensors
from bench.speed.session import Session, moved

WAYS = ("forward", "forward+backward")
NEAR = 1.4  # a candidate that was this much slower than the best is not tried at longer sequences
COMPILED_AT = 8192  # a compiled reference does the same work at any length up to its limit


def run(session: Session) -> None:
    session.measure_ceilings()
    for causal in (False, True):
        name = f"attention, {'causal' if causal else 'full'}"
        if session.wanted(name):
            best_of(session, name, attention_cores(session.asked.dim, causal, session.device))
    sound = []
    for case in cases(session.asked.head):
        if session.wanted(case.name) and not session.late() and passes(session, case.name, case):
            sound.append(case)
            _time_case(session, case)
    for case in sound:  # last, because compiling takes far longer than the rest, and a run may be cut short
        _time_compiled(session, case)
    if session.wanted("flash-linear-attention") and not session.late():
        linear(session, linear_core)  # last: it tries many settings of its kernels, for a minute or more


def size_of(session: Session, length: int) -> Size:
    asked = session.asked
    return Size(max(1, asked.tokens // length), length, asked.dim, asked.head)


def passes(session: Session, name: str, case: Case | Rival, shapes: tuple[tuple[int, int], ...] = ()) -> bool:
    """At odd lengths, short and not, and at a length of many tiles. (One token alone is a matter of the tests: there some gradients
    are zero by definition, and have no relative error.)"""
    asked = session.asked
    for rows, length in shapes or (((3, 37), (5, 7)) if asked.quick else ((3, 333), (5, 7), (2, 1024))):
        size = Size(rows, length, asked.dim, asked.head)
        given = draw(case.shapes(size), session.dtype, session.device)
        try:
            if not session.checked(name, (rows, length, asked.dim), rule.check(case.body, case.plain, given, session.dtype)):
                return False
        except Exception as failure:  # a kernel that does not compile is a result, too
            session.failed(name, (rows, length, asked.dim), failure)
            return False
    return True


def call_of(body: Body, given: Tensors, way: str) -> tuple[Call, torch.Tensor]:
    """The call to be timed, and the shape of its result (a tensor without data)."""
    if way == "forward":

        def forward() -> torch.Tensor:
            with torch.no_grad():
                return body(given)

        return forward, forward().to("meta")
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in given.items()}
    inputs = list(leaves.values())
    dy = torch.randn_like(body(leaves))  # a compiled body is compiled with its backward pass here

    def both() -> None:
        torch.autograd.grad(body(leaves), inputs, dy)

    return both, dy.to("meta")


def _time(session: Session, name: str, body_name: str, body: Body, case: Case | Rival, length: int, ways: tuple[str, ...] = WAYS) -> None:
    size = size_of(session, length)
    for way in ways:
        row = {"name": name, "body": body_name, "way": way, "N": length, "rows": size.rows, "dim": size.dim, "causal": case.causal}
        try:
            given = draw(case.shapes(size), session.dtype, session.device)
            call, y = call_of(body, given, way)
        except Exception as failure:  # a failing body must not end the run
            session.note(f"{name}, {body_name}, {way}, N={length}: {type(failure).__name__}: {' '.join(str(failure).split())[:120]}")
            continue
        backward = way != "forward"
        session.time(call, row, case.flops(size) * (3 if backward else 1), moved(list(given.values()), y, backward))


def best_of(session: Session, name: str, candidates: list[Rival], ways: tuple[str, ...] = WAYS) -> None:
    """The fastest candidate at each length, forward and backward together; every trial is recorded."""
    before: dict[str, float] = {}  # at the length before
    sound = [rival for rival in candidates if passes(session, f"{name}, {rival.name}", rival, ((3, 333),))]
    for length in session.asked.lengths:
        glances: dict[str, float] = {}
        near = NEAR * min(before.values(), default=math.inf)
        for rival in sound:
            if session.late():
                return
            if before.get(rival.name, 0) > near:
                continue
            try:
                given = draw(rival.shapes(size_of(session, length)), session.dtype, session.device)
                glances[rival.name] = session.glance(call_of(rival.body, given, WAYS[1])[0]).us
            except Exception as failure:
                session.note(f"{name}, {rival.name}, N={length}: {' '.join(str(failure).split())[:120]}")
        if glances:
            best = next(rival for rival in sound if rival.name == min(glances, key=lambda key: glances[key]))
            count, before = len(session.rows), glances
            _time(session, name, best.name, best.body, best, length, ways)
            for row in session.rows[count:]:
                row["candidates"] = glances


def linear(session: Session, made: Callable[[int], Rival], ways: tuple[str, ...] = WAYS) -> None:
    """flash-linear-attention, if it is installed."""
    name = "flash-linear-attention"
    if session.device != "cuda":
        session.note(f"{name}: its kernels need a GPU")
        return
    try:
        rival = made(session.asked.head)
    except ImportError as error:
        session.note(str(error))
        return
    if passes(session, name, rival, ((3, 333),)):
        for length in session.asked.lengths:
            if session.late():
                return
            _time(session, name, rival.name, rival.body, rival, length, ways)


def _time_case(session: Session, case: Case) -> None:
    one = _compiled_at(session, case)
    for length in session.asked.lengths:
        if session.late():
            return
        _time(session, case.name, "ours", case.body, case, length)
        if length <= case.reference_most and (session.device != "cuda" or length == one):
            _time(session, case.name, "reference", case.plain, case, length)


def _time_compiled(session: Session, case: Case) -> None:
    asked, one = session.asked, _compiled_at(session, case)
    for length in asked.lengths:
        if (asked.compiled == "all" or (asked.compiled == "one" and length == one)) and not session.late():
            _compiled(session, case, length)


def _compiled_at(session: Session, case: Case) -> int:
    """The length at which plain torch is compiled: the longest it takes, up to COMPILED_AT."""
    fitting = [length for length in session.asked.lengths if length <= min(case.reference_most, COMPILED_AT)]
    return max(fitting, default=min(session.asked.lengths))


def _compiled(session: Session, case: Case, length: int) -> None:
    if case.unrolls or length > case.reference_most:
        session.note(f"{case.name}, reference, compiled, N={length}: {'a loop that would be unrolled' if case.unrolls else 'too long'}")
        return
    torch.compiler.reset()
    compiled: Callable[[Tensors], torch.Tensor] = torch.compile(case.plain, dynamic=False)
    _time(session, case.name, "reference, compiled", compiled, case, length, WAYS[1:])
