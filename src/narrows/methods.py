"""Methods by name. A method is a frozen dataclass; its fields are settings, written ``name:key=value,...``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from typing import Any, get_type_hints


class StackError(ValueError):
    """A stack, or a part of one, that cannot be built; the message names the key and the nearest one that would do."""


def build(seam: str, text: str, registry: Mapping[str, str]) -> Any:
    """The method that `text` writes, from a seam's registry of ``name -> "module:Class"``. Raises StackError."""
    name, _, settings = text.partition(":")
    if name not in registry:
        raise StackError(f"{seam}={name[:40]}: no such method{near(name, registry)}; there is {', '.join(registry)}")
    module, _, class_name = registry[name].partition(":")
    cls = getattr(import_module(module), class_name)
    types = get_type_hints(cls)
    known = {f.name: types[f.name] for f in fields(cls)}
    values = {}
    for setting in settings.split(",") if settings else ():
        key, equals, value = setting.partition("=")
        if key not in known:
            raise StackError(f"{seam}={name}: no setting {key[:40]!r}{near(key, known)}")
        if not equals or key in values:
            raise StackError(f"{seam}={name}: {key} must be given once, as {key}=value")
        values[key] = _parse(f"{seam}={name}:{key}", value, known[key])
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
    settings = ",".join(f"{f.name}={_show(getattr(method, f.name))}" for f in fields(method))
    return f"{name}:{settings}" if settings else name


def near(name: str, known: Mapping[str, Any]) -> str:
    """A hint at the closest known name, or nothing."""
    match = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {match[0]!r}?)" if match else ""


def _parse(where: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text] if kind is bool else kind(text)
    except (ValueError, KeyError):
        raise StackError(f"{where} is {text[:40]!r}; it must be of type {kind.__name__}") from None


def _show(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
