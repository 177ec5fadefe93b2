"""The requests of the page: pydantic checks them, and every refusal is a 4xx status with one sentence."""

from __future__ import annotations

import json
from typing import Annotated, Literal, TypeVar

from fastapi import Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from tokmix.core.checks import nearest
from tokmix.pages.requests import Refusal, read_body

BODY = 64 * 1024  # bytes
TEXT = 8000  # letters
MAX_NEW = 512
PATIENCE = 10.0  # seconds for a body to arrive


def _filled(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("empty", "is empty")
    return text


Text = Annotated[str, StringConstraints(max_length=TEXT), AfterValidator(_filled)]
Player = Literal["main", "other"]


class TextRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    text: Text


class PredictRequest(TextRequest):
    text2: Text | None = None

    def texts(self, pair: bool) -> list[str]:
        if pair and self.text2 is None:
            raise Refusal(422, "this model reads two texts: the field 'text2' is missing")
        if not pair and self.text2 is not None:
            raise Refusal(422, "this model reads one text: leave the field 'text2' out")
        return [self.text] if self.text2 is None else [self.text, self.text2]


class MapRequest(PredictRequest):
    model: Player = "main"
    layer: int | None = Field(None, ge=0, le=1000)


class GenerateRequest(TextRequest):
    model: Player = "main"
    max_new: int = Field(100, ge=1, le=MAX_NEW)
    temperature: float = Field(0.8, ge=0, le=10, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=1, le=10**6)
    seed: int | None = Field(None, ge=0, le=2**31 - 1)


Kind = TypeVar("Kind", bound=TextRequest)


async def read(request: Request, kind: type[Kind]) -> Kind:
    """The JSON object of a request. A field that is null counts as left out."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":  # also keeps other sites' forms out: a browser asks first before it sends this type for them
        raise Refusal(415, f"the body should be application/json, not {media[:80] or 'of no type'!r}")
    body = await read_body({name: value.decode("latin-1") for name, value in request.headers.raw}, request.receive, BODY, PATIENCE)
    if not body.strip():
        raise Refusal(400, "the body is empty; it should be a JSON object")
    try:
        given = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(given, dict):
        raise Refusal(400, f"the body should be a JSON object, not {_kind(given)}")
    try:
        return kind.model_validate({name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise Refusal(413 if first["type"] == "string_too_long" else 422, _why(kind, first)) from None


def _why(kind: type[TextRequest], error: ErrorDetails) -> str:
    name, given, bounds = str(error["loc"][0])[:80], error["input"], error.get("ctx", {})
    match error["type"]:
        case "missing":
            return f"the field {name!r} is missing"
        case "extra_forbidden":
            return f"unknown field {name!r}; known: {', '.join(kind.model_fields)}{nearest(name, kind.model_fields)}"
        case "string_type":
            return f"{name} should be a text, not {_kind(given)}"
        case "string_unicode":
            return f"{name} holds half of a character (a lone surrogate)"
        case "string_too_long":
            return f"{name} has {len(given):,} letters; at most {bounds['max_length']:,} are taken"
        case "literal_error":
            return f"{name}={str(given)[:80]!r} is unknown; known: {bounds['expected']}"
        case "int_type" | "float_type" | "finite_number":
            return f"{name} should be a {'whole' if error['type'] == 'int_type' else 'finite'} number, not {_kind(given)}"
        case "greater_than_equal" | "less_than_equal":
            limits = {key: getattr(one, key) for one in kind.model_fields[name].metadata for key in ("ge", "le") if hasattr(one, key)}
            return f"{name} should be from {limits['ge']:,} to {limits['le']:,}"
    return f"{name} {error['msg']}"


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), f"the number {value!r}"[:60])
