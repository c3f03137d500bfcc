"""Random JSON schemas, and whether a value fits one."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "name", "é", 'quo"te', "x y", "type", "items"])
LEAVES = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": -5, "maximum": 120}]),
    st.integers(0, 6).map(lambda n: {"type": "string", "maxLength": n}),
    st.lists(st.sampled_from(["red", "", 3, None, True, "<|im_end|>", "}"]), min_size=1, max_size=4).map(
        lambda values: {"enum": values}
    ),
    st.sampled_from([{"const": "k"}, {"type": "string", "pattern": "^[a-c]{1,4}$"}]),
)


def _grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def of(properties: dict[str, Any]) -> st.SearchStrategy[Any]:
        needed = st.sets(st.sampled_from(sorted(properties))) if properties else st.just(set())
        head = {"type": "object", "properties": properties, "additionalProperties": False}
        return needed.map(lambda names: {**head, "required": sorted(names)})

    arrays = st.tuples(inner, st.integers(0, 2)).map(
        lambda t: {"type": "array", "items": t[0], "minItems": t[1], "maxItems": t[1] + 1}
    )
    unions = st.lists(inner, min_size=1, max_size=3).map(lambda members: {"anyOf": members})
    return st.one_of(st.dictionaries(NAMES, inner, max_size=3).flatmap(of), arrays, unions)


SCHEMAS = st.recursive(LEAVES, _grow, max_leaves=6)


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether `value` is one that `schema`, of the kinds above, describes."""
    if "anyOf" in schema:
        return any(fits(value, member) for member in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        choices = schema.get("enum", [schema.get("const")])
        return any(type(value) is type(choice) and value == choice for choice in choices)
    kind = schema["type"]
    if kind == "object":
        known = schema["properties"]
        needed = set(schema["required"])
        return (
            isinstance(value, dict)
            and needed <= value.keys() <= known.keys()
            and all(fits(item, known[key]) for key, item in value.items())
        )
    if kind == "array":
        size = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return size and all(fits(item, schema["items"]) for item in value)
    if kind == "string":
        short = isinstance(value, str) and len(value) <= schema.get("maxLength", 4)
        return short and ("pattern" not in schema or (len(value) > 0 and set(value) <= set("abc")))
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    return value is None if kind == "null" else isinstance(value, bool)
