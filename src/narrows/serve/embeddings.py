"""POST /v1/embeddings: texts to vectors, read in the same steps as everything else."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response

from ..sampling import SamplingParams
from .bodies import EmbeddingRequest, prompts
from .errors import ApiError
from .events import until_disconnect
from .gateway import Caller, Gateway
from .replies import EmbeddingList, reply

router = APIRouter()
MAX_INPUTS = 2048


@router.post("/v1/embeddings", responses=reply(EmbeddingList, "A vector of each input."))
async def embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """The mean of a text's final hidden states, of length 1; for one input or several, texts or token ids."""
    gateway: Gateway = request.app.state.gateway
    caller: Caller = request.scope["caller"]
    served = gateway.model(body.model)
    inputs = prompts(body.input, "input")
    if len(inputs) > MAX_INPUTS:
        raise ApiError(400, f"input holds {len(inputs)} texts; at most {MAX_INPUTS} are taken", param="input")
    if not all(inputs):
        raise ApiError(400, "input holds a text without tokens, which has no meaning to embed", param="input")
    limits = served.backend.limits
    if body.dimensions is not None and limits and body.dimensions != limits.hidden_size:
        message = f"dimensions is {body.dimensions}; {served.name} gives {limits.hidden_size} and cannot give fewer"
        raise ApiError(400, message, param="dimensions", code="unsupported_parameter")
    served.check_count(len(inputs), "input")
    ids = [list(i) if not isinstance(i, str) else await served.encode(i, body.add_special_tokens) for i in inputs]
    call = served.submit(ids, SamplingParams(), caller, "input", priority=body.priority, embed=True)
    vectors: dict[int, bytes] = {}

    async def collect() -> None:
        async for position, delta in call:
            vectors[position] = delta.embedding or b""

    try:
        await until_disconnect(request.receive, collect())
    finally:
        call.close()
    num_tokens = sum(map(len, ids))
    content: dict[str, Any] = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": i, "embedding": _written(vectors[i], body.encoding_format == "base64")}
            for i in range(len(ids))
        ],
        "model": served.name,
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return Response(msgspec.json.encode(content), media_type="application/json")


def _written(vector: bytes, as_base64: bool) -> str | list[float]:
    """A vector of little-endian float32, as a client asked for it."""
    return base64.b64encode(vector).decode() if as_base64 else np.frombuffer(vector, "<f4").tolist()
