"""Text in and out: tokenizers, streaming, stop strings, chat templates."""

from narrows.text.errors import TemplateError, TokenizerError
from narrows.text.load import load_tokenizer
from narrows.text.stream import Detokenizer, StopStrings
from narrows.text.template import ChatTemplate, load_chat_template
from narrows.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopStrings",
    "TemplateError",
    "Tokenizer",
    "TokenizerError",
    "load_chat_template",
    "load_tokenizer",
]
