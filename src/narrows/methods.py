"""Methods by name. A method is a frozen dataclass; its fields are settings, written ``name:key=value,...``.

A setting that is a method of the same seam has ``metadata={"method": True}`` and is written in parentheses. Where a
seam has a method ``first``, made of several, it is written ``a|b``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any, get_type_hints


class StackError(ValueError):
    """A stack, or a part of one, that cannot be built; the message names the key and the nearest one that would do."""


def build(seam: str, text: str, registry: Mapping[str, str]) -> Any:
    """The method that `text` writes, from a seam's registry of ``name -> "module:Class"``. Raises StackError."""
    if "first" in registry and len(choices := _split(text, "|")) > 1:
        return _class(registry["first"])(tuple(build(seam, choice, registry) for choice in choices))
    if text.startswith("(") and text.endswith(")"):
        return build(seam, text[1:-1], registry)
    name, _, settings = text.partition(":")
    if name not in registry or name == "first":
        raise StackError(f"{seam}={name[:40]}: no such method{near(name, registry)}; there is {', '.join(registry)}")
    cls = _class(registry[name])
    types = get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}
    values = {}
    for setting in _split(settings, ",") if settings else ():
        key, equals, value = setting.partition("=")
        if key not in known:
            raise StackError(f"{seam}={name}: no setting {key[:40]!r}{near(key, known)}")
        if not equals or key in values:
            raise StackError(f"{seam}={name}: {key} must be given once, as {key}=value")
        nested = known[key].metadata.get("method")
        values[key] = build(seam, value, registry) if nested else _parse(f"{seam}={name}:{key}", value, types[key])
    missing = next((k for k, f in known.items() if k not in values and f.default is f.default_factory is MISSING), None)
    if missing:
        raise StackError(f"{seam}={name} needs {missing}: {name}:{missing}=value")
    try:
        return cls(**values)
    except ValueError as error:
        raise StackError(f"{seam}={name}: {error}") from None


def show(method: Any, registry: Mapping[str, str]) -> str:
    """The text that builds `method` again."""
    cls = type(method)
    path = f"{cls.__module__}:{cls.__qualname__}"
    name = next((name for name, entry in registry.items() if entry == path), None)
    if name is None:
        raise StackError(f"{path} is not in the registry of its seam")
    if name == "first":
        return "|".join(show(part, registry) for part in getattr(method, fields(method)[0].name))
    values = [(f, getattr(method, f.name)) for f in fields(method)]
    settings = ",".join(
        f"{f.name}={f'({show(value, registry)})' if f.metadata.get('method') else _show(value)}" for f, value in values
    )
    return f"{name}:{settings}" if settings else name


def near(name: str, known: Mapping[str, Any]) -> str:
    """A hint at the closest known name, or nothing."""
    match = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _class(entry: str) -> Any:
    module, _, name = entry.partition(":")
    return getattr(import_module(module), name)


def _split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that are not in parentheses."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "(") - (char == ")")
        if char == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _parse(where: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise StackError(f"{where} is {text[:40]!r}; it must be of type {kind.__name__}") from None


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
