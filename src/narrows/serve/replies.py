"""What responses hold, for /openapi.json; they are written elsewhere, and tests hold both together."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import Depends
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None = Field(description="The field at fault.")
    code: str | None = Field(description="For programs.")


class Error(BaseModel):
    error: ErrorDetail


class CachedTokens(BaseModel):
    cached_tokens: int = Field(description="Of the prompt, found in the cache.")


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class _Completed(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: Usage
    ledger: dict[str, Any] | None = Field(description="What the first answer cost.")


class _Choice(BaseModel):
    index: int
    logprobs: dict[str, Any] | None
    finish_reason: str
    stop_reason: str | int | None = Field(description="The stop string or token that matched.")


class Message(BaseModel):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[dict[str, Any]] = Field(default=[])


class ChatChoice(_Choice):
    message: Message


class ChatCompletion(_Completed):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class TextChoice(_Choice):
    text: str


class Completion(_Completed):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class ResponseReply(BaseModel):
    """OpenAI's response object."""

    id: str
    object: Literal["response"]
    status: Literal["completed", "incomplete"]
    created_at: int
    model: str
    output: list[dict[str, Any]]
    usage: dict[str, Any]


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="Of length 1; as a string, base64 of little-endian float32.")


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class ModelMeta(BaseModel):
    vocab_size: int
    stack: str | None = Field(description="The parts in use.")
    lossless: bool | None
    threads: int | None


class ModelCard(BaseModel):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int | None = Field(description="Tokens of prompt and answer; null while the model is loading.")
    meta: ModelMeta


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelCard]


class TokenizerInfo(BaseModel):
    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    pad_token: None
    chat_template: str | None
    model_max_length: int | None


class Tokenized(BaseModel):
    count: int
    max_model_len: int | None
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(BaseModel):
    prompt: str


class Liveness(BaseModel):
    status: Literal["alive", "stalled"]
    stalled: list[str] = Field(description="Models whose process could not be replaced.")
    steps: dict[str, int] = Field(description="Of each model's engine, since the start.")


class Readiness(BaseModel):
    status: Literal["ready", "not ready", "draining"]
    models: dict[str, str]


KEY = [Depends(HTTPBearer(auto_error=False, description="A key, where the server wants one."))]  # the guard checks it
ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error, "description": "The request is at fault, or comes too early; the message says how."},
    "5XX": {"model": Error, "description": "The server is at fault, or busy; 503 says when to come back."},
}


def reply(model: type[BaseModel], what: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route."""
    return {200: {"model": model, "description": what}}


def streamed(model: type[BaseModel], what: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that answers whole or as a stream."""
    event = {"type": "object", "properties": {name: {"type": "string"} for name in ("event", "data")}}
    event |= {"required": ["data"], "description": "With stream=true, each of the server-sent events."}
    return {200: {"model": model, "description": what, "content": {"text/event-stream": {"schema": event}}}}


def states(model: type[BaseModel], good: str, bad: str) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route that says how the server is."""
    return {200: {"model": model, "description": good}, 503: {"model": model, "description": bad}}
