"""Errors as OpenAI's clients expect them: a status, and a body {"error": {message, type, param, code}}."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """What a client is told. `param` names the field at fault, `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = status, message, param, code, headers

    @property
    def body(self) -> dict[str, Any]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        # ASCII, because a message may quote text that is not valid Unicode.
        content = json.dumps(self.body, ensure_ascii=True, allow_nan=False)
        return Response(content, self.status, self.headers, media_type="application/json")


def unavailable(message: str, retry_after: int = 1) -> ApiError:
    """503: it is not the client's fault, and trying again makes sense."""
    return ApiError(503, message, code="unavailable", headers={"Retry-After": str(retry_after)})


def from_status(status: int, detail: object = None) -> ApiError:
    """The error of a bare HTTP status, such as of a path that does not exist."""
    phrase = HTTPStatus(status).phrase
    return ApiError(status, detail if isinstance(detail, str) and detail else phrase)
