"""OpenAI's `response_format`."""

from __future__ import annotations

from typing import Any

from ..sampling import ParamError

ANY_OBJECT = {"type": "object"}


def response_format(value: Any) -> dict[str, Any] | None:
    """What `structured_outputs` has to be for a `response_format`; None for plain text.

    Raises ParamError naming the field. That the schema is one is known when the request is added.
    """
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json": ANY_OBJECT}
    if kind != "json_schema":
        kinds = "text, json_object or json_schema"
        raise ParamError("response_format", f"must be an object whose type is {kinds}")
    named = value.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    if not isinstance(schema, dict):
        raise ParamError("response_format.json_schema.schema", "must be a JSON schema, which is an object")
    return {"json": schema}
