"""Chat templates: from messages to the text, or the ids, a model was trained on."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from narrows.text.errors import TemplateError
from narrows.text.load import MAX_JSON_BYTES, read_json
from narrows.text.markers import Markers
from narrows.text.messages import check_messages, plain
from narrows.text.sandbox import BASE_WEIGHT, BoundedEnvironment, spending
from narrows.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from narrows.checkpoints import Checkpoint

MAX_TEMPLATE_CHARS = 1 << 16
INPUT_FACTOR = 64  # what a template may spend for each unit of weight it is given
RESERVED = frozenset(("messages", "add_generation_prompt", "bos_token", "eos_token"))
ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
NO_TEMPLATE = "the model has no chat template (it is a base model): use plain completion instead of chat"


class ChatTemplate:
    """A model's chat template. ``source`` is None for a base model; then ``render`` says so."""

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        self.source = source
        self._tokenizer = tokenizer
        self._compiled: jinja2.Template | None = None
        self._lock = threading.Lock()
        eos = sorted(tokenizer.eos_ids) if tokenizer.eos_id is None else [tokenizer.eos_id]
        self._markers = {
            "bos_token": "" if tokenizer.bos_id is None else tokenizer.token_text(tokenizer.bos_id),
            "eos_token": tokenizer.token_text(eos[0]) if eos else "",
        }
        self._special = Markers(map(tokenizer.token_text, tokenizer.special_ids))

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """The prompt for ``messages`` (see ``check_messages``), ending where the assistant speaks next.

        ``variables`` go to the template: ``tools``, and whatever else it reads. Raises TemplateError when messages are
        malformed, when the template refuses them, is wrong, or runs beyond its bounds.
        """
        return self._run(self._values(messages, add_generation_prompt, variables))

    def encode(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> list[int]:
        """Ids of the rendered prompt, with one BOS where the model wants it.

        Special tokens are those the template writes. Where messages or variables spell one out, that is plain text.
        Raises as ``render`` does.
        """
        values = self._values(messages, add_generation_prompt, variables)
        special, text = self._special, self._run(values)
        if special.opens(values):
            seal = f"{secrets.randbelow(10**16):016}"  # nobody can have written it, and no filter changes digits
            written = special.find(self._run(special.mark_openings(values, seal)))
            if special.find(text) != written:  # some are not the template's
                text = self._run(special.mark(values, seal))
                if special.find(text) != written:
                    raise TemplateError("the chat template makes a special token of parts of the messages")
                return self._tokenizer.encode_parts(special.parts(text, seal))
        return self._tokenizer.encode(text)

    def _values(self, messages: Any, add_generation_prompt: bool, variables: dict[str, Any]) -> dict[str, Any]:
        """What the template is given, but for the special tokens."""
        if self.source is None:
            raise TemplateError(NO_TEMPLATE)
        if refused := RESERVED & variables.keys():
            raise TemplateError(f"template variable {min(refused)!r} is set by the engine and cannot be given")
        values = plain(variables, "template variables")
        values |= {"messages": check_messages(messages), "add_generation_prompt": bool(add_generation_prompt)}
        values.setdefault("tools", None)
        for role in {message["role"] for message in values["messages"]} - ROLES:
            if marker := self._special.holding(role):  # templates put roles inside of markers
                raise TemplateError(f"role {role[:64]!r} is part of the special token {marker!r}")
        return values

    def _run(self, values: dict[str, Any]) -> str:
        values = values | self._markers
        try:
            template = self._compile()
            with spending(1 << 62) as scale:
                scale.weigh(values)
            with spending(BASE_WEIGHT + INPUT_FACTOR * scale.spent):
                return template.render(values)
        except TemplateError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is wrong at line {error.lineno}: {error.message}") from error
        except (RecursionError, MemoryError) as error:
            raise TemplateError("the chat template nests too deeply or makes too much") from error
        except Exception as error:  # a template is a program: what it does wrong may raise anything
            raise TemplateError(
                f"the chat template failed: {re.sub(r' at 0x[0-9a-f]+', '', str(error))[:500]}"
            ) from error

    def _compile(self) -> jinja2.Template:
        with self._lock:
            if self._compiled is None:
                source = self.source or ""
                if len(source) > MAX_TEMPLATE_CHARS:
                    raise TemplateError(f"the chat template is longer than {MAX_TEMPLATE_CHARS} characters")
                with spending(BASE_WEIGHT):
                    self._compiled = BoundedEnvironment().from_string(source)
            return self._compiled


def load_chat_template(ckpt: Checkpoint, tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template of a checkpoint; of several, the one named "default".

    A base model gives a ChatTemplate without source. Whether a template is right is known when it renders.
    """
    source = ckpt.metadata.get("tokenizer.chat_template") if ckpt.kind == "gguf" else _find(Path(ckpt.path))
    if source is not None and not isinstance(source, str):
        raise TemplateError(f"the chat template must be text, not {type(source).__name__}")
    return ChatTemplate(source, tokenizer)


def _find(folder: Path) -> Any:
    file = folder / "chat_template.jinja"
    if file.is_file():
        if file.stat().st_size > MAX_JSON_BYTES:
            raise TemplateError("chat_template.jinja is too large")
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise TemplateError("chat_template.jinja is not UTF-8") from error
    for name in ("chat_template.json", "tokenizer_config.json"):
        found = read_json(folder / name).get("chat_template")
        if isinstance(found, list):
            named = {t.get("name"): t.get("template") for t in found if isinstance(t, dict)}
            found = named.get("default")
        if found is not None:
            return found
    return None
