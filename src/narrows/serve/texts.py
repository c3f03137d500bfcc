"""GET /v1/models, POST /tokenize, POST /detokenize, GET /tokenizer_info."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from . import features
from .bodies import DetokenizeRequest, TokenizeRequest
from .errors import ApiError
from .gateway import Gateway, Served
from .replies import Detokenized, ModelCard, ModelList, Tokenized, TokenizerInfo, reply

router = APIRouter()


@router.get("/v1/models", responses=reply(ModelList, "All of them."))
async def models(request: Request) -> dict[str, Any]:
    """The models being served."""
    gateway: Gateway = request.app.state.gateway
    return {"object": "list", "data": [_describe(served) for served in gateway.models.values()]}


@router.get("/v1/models/{name:path}", responses=reply(ModelCard, "The model."))
async def model(name: str, request: Request) -> dict[str, Any]:
    """One of them."""
    return _describe(request.app.state.gateway.model(name))


def _describe(served: Served) -> dict[str, Any]:
    limits = served.backend.limits
    return {
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "narrows",
        "root": served.name,
        "parent": None,
        "max_model_len": limits and limits.max_model_len,
        "meta": {
            "vocab_size": served.tokenizer.vocab_size,
            "stack": limits and limits.stack,
            "lossless": limits and limits.lossless,
            "threads": limits and limits.num_threads,
        },
    }


@router.get("/tokenizer_info", responses=reply(TokenizerInfo, "Of the model."))
async def tokenizer_info(request: Request, model: str | None = None) -> dict[str, Any]:
    """The tokens that mean something, and the chat template; evaluation harnesses ask for them."""
    served: Served = request.app.state.gateway.model(model)

    def text(token: int | None) -> str | None:
        return None if token is None else served.tokenizer.token_text(token)

    return {
        "tokenizer_class": "narrows",
        "bos_token": text(served.tokenizer.bos_id),
        "eos_token": text(served.tokenizer.eos_id),
        "pad_token": None,
        "chat_template": served.chat_template.source,
        "model_max_length": served.backend.limits and served.backend.limits.max_model_len,
    }


@router.post("/tokenize", responses=reply(Tokenized, "The ids."))
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """Ids of a prompt, or of a conversation as the model's template writes it."""
    served = request.app.state.gateway.model(body.model)
    features.check(body)
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages", param="prompt")
    if body.prompt is not None:
        ids = await served.encode(body.prompt, body.add_special_tokens, body.parse_special)
    else:
        ids = await served.encode_chat(body.messages, body.add_generation_prompt, body.chat_template_kwargs or {})
    limits = served.backend.limits
    spell = served.tokenizer.token_bytes
    texts = [spell(token).decode(errors="replace") for token in ids] if body.return_token_strs else None
    return {"count": len(ids), "max_model_len": limits and limits.max_model_len, "tokens": ids, "token_strs": texts}


@router.post("/detokenize", responses=reply(Detokenized, "The text."))
async def detokenize(body: DetokenizeRequest, request: Request) -> dict[str, str]:
    """The text of ids."""
    served: Served = request.app.state.gateway.model(body.model)
    return {"prompt": await served.decode(body.tokens)}
