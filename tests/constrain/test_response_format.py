"""OpenAI's `response_format`."""

from __future__ import annotations

from typing import Any

import pytest

from narrows.constrain import response_format
from narrows.sampling import ParamError, SamplingParams

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json": {"type": "object"}}),
        ({"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}, {"json": SCHEMA}),
    ],
)
def test_what_it_asks_for(value: Any, expected: Any) -> None:
    assert response_format(value) == expected
    assert SamplingParams(structured_outputs=response_format(value)).structured_outputs == expected


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ("json", "response_format"),
        ({}, "response_format"),
        ({"type": ["json_object"]}, "response_format"),
        ({"type": "xml"}, "response_format"),
        ({"type": "json_schema"}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": [1]}}, "response_format.json_schema.schema"),
    ],
)
def test_malformed_ones_are_named(value: Any, field: str) -> None:
    with pytest.raises(ParamError) as error:
        response_format(value)
    assert error.value.field == field
