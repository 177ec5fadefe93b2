"""What a request may hold. Whatever else comes is refused with a status of 4xx and a sentence that says why."""

from __future__ import annotations

import asyncio
import json
import math
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException, Request

from tokmix.core.checks import nearest
from tokmix.runs.files import JsonObject

BODY = 64 * 1024  # bytes
TEXT = 8000  # letters
MAX_NEW = 512
PATIENCE = 10.0  # seconds for a body to arrive


@dataclass(frozen=True)
class Field:
    kind: type
    required: bool = False
    low: float = -math.inf
    high: float = math.inf
    known: tuple[str, ...] = ()


TEXT_FIELD = Field(str, required=True)
PLAYER = Field(str, known=("main", "other"))
PREDICT = {"text": TEXT_FIELD, "text2": Field(str)}
MAP = {**PREDICT, "model": PLAYER, "layer": Field(int, low=0, high=1000)}
GENERATE = {
    "text": TEXT_FIELD,
    "model": PLAYER,
    "max_new": Field(int, low=1, high=MAX_NEW),
    "temperature": Field(float, low=0, high=10),
    "top_k": Field(int, low=1, high=10**6),
    "seed": Field(int, low=0, high=2**31 - 1),
}


def refuse(status: int, why: str) -> HTTPException:
    return HTTPException(status, why)


async def read(request: Request, fields: dict[str, Field]) -> JsonObject:
    """The JSON object of a request, checked against the fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # also keeps other sites' forms out: a browser asks first before it sends this type for them
        raise refuse(415, f"the body should be application/json, not {kind[:80] or 'of no type'!r}")
    body = await _body(request)
    if not body.strip():
        raise refuse(400, "the body is empty; it should be a JSON object")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise refuse(400, f"the body is not JSON: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(given, dict):
        raise refuse(400, f"the body should be a JSON object, not {_kind(given)}")
    for name in given:
        if name not in fields:
            raise refuse(422, f"unknown field {name[:80]!r}; known: {', '.join(fields)}{nearest(name[:80], fields)}")
    for name, field in fields.items():
        if given.get(name) is None:
            if field.required:
                raise refuse(422, f"the field {name!r} is missing")
            given.pop(name, None)
        else:
            given[name] = _checked(name, given[name], field)
    return given


async def _body(request: Request) -> bytes:
    said = request.headers.get("content-length", "0")
    if said.isdigit() and int(said) > BODY:
        raise refuse(413, f"the body has {int(said):,} bytes; at most {BODY:,} are taken")
    parts, size = [], 0
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > BODY:
                    raise refuse(413, f"the body is over {BODY:,} bytes")
                parts.append(part)
    except TimeoutError:
        raise refuse(408, f"the body did not arrive within {PATIENCE:g} s") from None
    return b"".join(parts)


def _checked(name: str, value: Any, field: Field) -> Any:
    if field.kind is str:
        return _text(name, value, field)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if field.kind is int and not whole:
        raise refuse(422, f"{name} should be a whole number, not {_kind(value)}")
    if field.kind is float and not whole and not (isinstance(value, float) and math.isfinite(value)):
        raise refuse(422, f"{name} should be a finite number, not {_kind(value)}")
    if not field.low <= value <= field.high:
        raise refuse(422, f"{name} should be from {field.low:,} to {field.high:,}")
    return value


def _text(name: str, value: object, field: Field) -> str:
    if not isinstance(value, str):
        raise refuse(422, f"{name} should be a text, not {_kind(value)}")
    if field.known:
        if value not in field.known:
            raise refuse(422, f"{name}={value[:80]!r} is unknown; known: {', '.join(field.known)}")
        return value
    if len(value) > TEXT:
        raise refuse(413, f"{name} has {len(value):,} letters; at most {TEXT:,} are taken")
    if not value.strip():
        raise refuse(422, f"{name} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refuse(422, f"{name} holds half of a character (a lone surrogate)") from None
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), f"the number {value!r}"[:60])
