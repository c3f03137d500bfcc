"""The bodies of requests: OpenAI's fields, vLLM's beside them, and nothing unknown.

Sampling parameters come from the table in `narrows.sampling`, which also checks them; the rest is checked here, but for
what may be long: a body has to be checked in little time, as all others wait meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, create_model, model_validator

from ..constrain import response_format
from ..methods import near
from ..sampling import ParamError, SamplingParams, table
from .errors import ApiError

# All but those that say what becomes of the text.
SAMPLING = {f.name: f for f in table() if f.name not in ("detokenize", "prompt_logprobs")}

_TYPES: dict[str, Any] = {
    "number": {"type": ["number", "null"]},
    "integer": {"type": ["integer", "null"]},
    "boolean": {"type": ["boolean", "null"]},
    "list": {"type": ["array", "null"]},
    "object": {"type": ["object", "null"]},
    "string or list": {"type": ["string", "array", "null"]},
    "string or object": {"type": ["string", "object", "null"]},
}
_IDS = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_PROMPT: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}
_INPUT: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}


def prompts(value: Any, name: str = "prompt") -> Sequence[str | list[int]]:
    """One prompt or several, each a text or token ids, as several. Raises ApiError for anything else."""
    several = [value] if isinstance(value, str) or _are(int, value) else value
    if several == []:
        raise ApiError(400, f"{name} is an empty list; give at least one text or list of token ids", param=name)
    if not _are(str, several) and not (_are(list, several) and all(_are(int, ids) for ids in several)):
        message = f"{name} must be a text, the ids of its tokens, or a list of texts or of lists of ids"
        raise ApiError(400, message, param=name)
    return several


def _are(kind: type, values: Any) -> bool:
    """Whether it is a list of such values, true being no number, and not empty."""
    return isinstance(values, list) and bool(values) and set(map(type, values)) == {kind}


def sampling(given: Mapping[str, Any], **names: str) -> SamplingParams:
    """Sampling parameters. Raises ApiError, with the names that the request has for them."""
    try:
        return SamplingParams(**given)
    except ParamError as error:
        name = names.get(error.field, error.field)
        raise ApiError(400, error.message.replace(error.field, name, 1), param=name) from None


def json_form(value: Any, name: str = "response_format") -> dict[str, Any] | None:
    """OpenAI's `response_format`, called `name` in the request, as `structured_outputs`. Raises ApiError."""
    try:
        return response_format(value)
    except ParamError as error:
        field = error.field.replace("response_format", name, 1)
        raise ApiError(400, error.message.replace(error.field, field, 1), param=field) from None


class Body(BaseModel):
    """A JSON object without unknown fields."""

    model_config = ConfigDict(strict=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                name = str(key)[:64]
                message = f"Unrecognized request argument supplied: {name}{near(name, cls.model_fields)}"
                raise ApiError(400, message, param=name, code="unknown_parameter")
        return data


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = Field(None, description="Accepted, without effect.")


class ChoiceStreamOptions(StreamOptions):
    include_drafted: bool | None = Field(
        None, description="Each chunk's choice says in `drafted` whether its text was guessed ahead and kept."
    )


_Sampling: Any = create_model(
    "Sampling",
    __base__=Body,
    **{
        name: (Any, Field(None, description=f.metadata["doc"], json_schema_extra=_TYPES[f.metadata["kind"]]))
        for name, f in SAMPLING.items()
    },  # type: ignore[call-overload]
)


Priority = Annotated[int | None, Field(ge=-(1 << 31), lt=1 << 31, description="Among an API key's, lower is earlier.")]


class Generation(_Sampling):
    """What chats and completions have in common."""

    model: str | None = Field(None, max_length=512)
    stream: bool | None = False
    stream_options: ChoiceStreamOptions | None = None
    response_format: Any = Field(None, json_schema_extra=_TYPES["object"])
    cache_salt: str | None = Field(
        None, max_length=256, description="Keeps the cached prompt to requests with the same."
    )
    priority: Priority = 0
    # Told to OpenAI about a request; of no effect on the answer.
    user: str | None = None
    metadata: dict[str, str] | None = Field(None, max_length=16)
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @property
    def streaming(self) -> ChoiceStreamOptions:
        """How to stream. Raises ApiError when there are options but no stream."""
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options is for requests with stream=true", param="stream_options")
        return self.stream_options or ChoiceStreamOptions.model_validate({})

    def form(self) -> tuple[str, dict[str, Any] | None]:
        """The field that asks for a form of answers, and the form as `structured_outputs` has it. Raises ApiError."""
        if (wanted := json_form(self.response_format)) is None:
            return "structured_outputs", None if self.structured_outputs == {} else self.structured_outputs
        if self.structured_outputs:
            message = "response_format and structured_outputs both ask for a form: give one of the two"
            raise ApiError(400, message, param="response_format")
        return "response_format", wanted

    def given(self) -> dict[str, Any]:
        """The sampling parameters of the table that were given, null being none."""
        return {name: value for name in SAMPLING if (value := getattr(self, name)) is not None}


class ChatRequest(Generation):
    """POST /v1/chat/completions."""

    messages: Any = Field(json_schema_extra={"type": "array", "items": {"type": "object"}, "minItems": 1})
    logprobs: bool | None = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    max_completion_tokens: Any = Field(None, json_schema_extra=_TYPES["integer"])
    add_generation_prompt: bool = True
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Variables for the chat template.")
    tools: Any = Field(None, json_schema_extra=_TYPES["list"])
    tool_choice: Any = Field(None, json_schema_extra=_TYPES["string or object"])
    parallel_tool_calls: Any = Field(None, json_schema_extra=_TYPES["boolean"])
    # See features.py.
    functions: Any = None
    function_call: Any = None

    def params(self, structured_outputs: dict[str, Any] | None) -> SamplingParams:
        """The sampling parameters, by the names they have elsewhere, answers having a form. Raises ApiError."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs=true", param="top_logprobs")
        new = self.max_completion_tokens is not None
        given = self.given() | {
            "structured_outputs": structured_outputs,
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
            "max_tokens": self.max_completion_tokens if new else self.max_tokens,
        }
        return sampling(given, max_tokens="max_completion_tokens" if new else "max_tokens")


class CompletionRequest(Generation):
    """POST /v1/completions."""

    prompt: Any = Field(json_schema_extra=_PROMPT)
    echo: bool | None = False
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool = True


class ResponsesRequest(Body):
    """POST /v1/responses."""

    model: str | None = Field(None, max_length=512)
    input: Any = Field(json_schema_extra=_INPUT)
    instructions: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_output_tokens: Any = Field(None, json_schema_extra=_TYPES["integer"])
    temperature: Any = Field(None, json_schema_extra=_TYPES["number"])
    top_p: Any = Field(None, json_schema_extra=_TYPES["number"])
    priority: Priority = 0
    # Of no effect on the answer.
    user: str | None = None
    metadata: dict[str, str] | None = Field(None, max_length=16)
    store: bool | None = Field(None, description="Nothing is kept, whatever it says.")
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    text: Any = Field(None, json_schema_extra=_TYPES["object"])
    tools: Any = Field(None, json_schema_extra=_TYPES["list"], description="Functions; no other kinds.")
    tool_choice: Any = Field(None, json_schema_extra=_TYPES["string or object"])
    parallel_tool_calls: bool | None = None
    # See features.py.
    previous_response_id: Any = None
    conversation: Any = None
    background: Any = None
    truncation: Any = None
    include: Any = None
    reasoning: Any = None


class EmbeddingRequest(Body):
    """POST /v1/embeddings."""

    model: str | None = Field(None, max_length=512)
    input: Any = Field(json_schema_extra=_PROMPT)
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: int | None = Field(None, ge=1, description="Must be the model's own, if given.")
    add_special_tokens: bool = True
    priority: Priority = 0
    user: str | None = Field(None, description="Of no effect.")


class TokenizeRequest(Body):
    """POST /tokenize: a prompt, or the messages of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: Any = None
    add_special_tokens: bool = True
    parse_special: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Any = None


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], FailFast()] = Field(max_length=1 << 20)
