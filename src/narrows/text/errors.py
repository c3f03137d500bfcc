"""What the text parts raise."""

from __future__ import annotations


class TokenizerError(ValueError):
    """A tokenizer cannot be built from a checkpoint, or cannot encode a text."""


class TemplateError(ValueError):
    """A chat template is missing, wrong, or asks for more than it may; or messages are malformed."""
