"""Requests and answers. pydantic checks them, and FastAPI writes the OpenAPI page from them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

INPUTS = 256  # texts of one request
LETTERS = 100_000  # of one text
MAX_TOKENS = 1024  # new ones of a text that goes on
PROMPTS = 16
FIELDS = 32  # of a body

Text = Annotated[str, Field(min_length=1, max_length=LETTERS)]
Pair = Annotated[list[Text], Field(min_length=2, max_length=2, description="the two texts of a pair")]
Name = Annotated[str, Field(max_length=200, description="the served model's name, as answers give it; may be left out")] | None


def _whole(given: object) -> object:
    """JSON has one kind of number: 5.0 is a whole one."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


WHOLE = BeforeValidator(_whole)  # stands last: bounds behind it would not reach the OpenAPI page


class Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _few(cls, given: object) -> object:
        """A body has room for 100,000 unknown fields, and collecting that many errors takes seconds."""
        if isinstance(given, dict) and len(given) > FIELDS:
            raise PydanticCustomError("fields", "{count} fields are too many", {"count": len(given)})
        return given


class RowsRequest(Request):
    model: Name = None

    def rows(self) -> list[tuple[str, ...]]:
        raise NotImplementedError


class TextsRequest(RowsRequest):
    """One text, or a list of them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": "a fine film"}, {"input": ["a fine film", "a dull day"]}]})
    input: Text | Annotated[list[Text], Field(min_length=1, max_length=INPUTS)]

    def rows(self) -> list[tuple[str, ...]]:
        return [(text,) for text in ([self.input] if isinstance(self.input, str) else self.input)]


class PairsRequest(RowsRequest):
    """A list of pairs, for a model that reads two texts at a time."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"input": [["a fine film", "a lovely film"]]}]})
    input: Annotated[list[Pair], Field(min_length=1, max_length=INPUTS)]

    def rows(self) -> list[tuple[str, ...]]:
        return [tuple(pair) for pair in self.input]


class EmbeddingsRequest(RowsRequest):
    encoding_format: Annotated[Literal["float", "base64"], Field(description="base64: of float32, as the package openai asks")] = "float"


class TextsToEmbed(TextsRequest, EmbeddingsRequest):
    pass


class PairsToEmbed(PairsRequest, EmbeddingsRequest):
    pass


class CompletionRequest(Request):
    model_config = ConfigDict(json_schema_extra={"examples": [{"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}]})
    prompt: Text | Annotated[list[Text], Field(min_length=1, max_length=PROMPTS)]
    model: Name = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS), WHOLE] = 100
    temperature: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False, description="0: the likeliest token")] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=1, le=1_000_000), WHOLE] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**31), WHOLE] | None = None
    stop: Annotated[str, Field(min_length=1, max_length=100)] | Annotated[list[Text], Field(min_length=1, max_length=4)] | None = None
    stream: Annotated[bool, Field(description="answers as server-sent events, one a piece of text, [DONE] at the end")] = False

    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def stops(self) -> list[str]:
        return [] if self.stop is None else [self.stop] if isinstance(self.stop, str) else self.stop


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int = 0
    total_tokens: int


class Classified(BaseModel):
    index: int
    label: str | None = None
    labels: list[str] | None = None
    probabilities: dict[str, float] | None = None
    score: float | None = None
    truncated: bool = Field(description="whether the text was cut to the model's length")


class Classifications(BaseModel):
    object: Literal["list"] = "list"
    model: str
    data: list[Classified]
    usage: Usage


class Embedded(BaseModel):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(BaseModel):
    object: Literal["list"] = "list"
    model: str
    data: list[Embedded]
    usage: Usage


class Choice(BaseModel):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class Status(BaseModel):
    status: str


class Reason(BaseModel):
    message: str
    type: str
    code: int


class Error(BaseModel):
    """Every answer that is not 2xx."""

    error: Reason
