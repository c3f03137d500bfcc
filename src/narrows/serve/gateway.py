"""The models being served: their texts, which the gateway turns to ids and back, and the backends that answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from ..checkpoints import open_checkpoint
from ..models import hub
from ..prompts import ContextLengthError, RequestError, check_prompt
from ..sampling import SamplingParams, fresh_seed
from ..text import ChatTemplate, TemplateError, Tokenizer, TokenizerError, load_chat_template, load_tokenizer
from . import wire
from .backend import Backend
from .call import Call
from .errors import ApiError
from .forms import Forms, Trials
from .metrics import Metrics, ModelMetrics
from .settings import Settings
from .tracing import Tracing

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Texts:
    """What turns text to ids and back for one model. Used in threads: long texts must not hold up other requests."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate

    @classmethod
    def load(cls, path: Path) -> Texts:
        """Raises ValueError for a file that is not a model or whose vocabulary or template is damaged."""
        ckpt = open_checkpoint(hub.parent(path))
        tokenizer = load_tokenizer(ckpt)
        return cls(tokenizer, load_chat_template(ckpt, tokenizer))


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and until when: what the guard found out about a request."""

    request_id: str
    key: str = ""  # a digest of the API key; "" without keys
    deadline: float | None = None  # monotonic seconds
    log: dict[str, Any] = field(default_factory=dict)  # for the access log
    calls: list[Call] = field(default_factory=list)  # what was handed to engines


class Served:
    """One model under its name."""

    def __init__(self, name: str, texts: Texts, backend: Backend, trials: Trials) -> None:
        self.name, self.backend = name, backend
        self.tokenizer, self.chat_template = texts.tokenizer, texts.chat_template
        self.created = int(time.time())
        self.forms = Forms(texts.tokenizer, trials)

    @cached_property
    def fingerprint(self) -> str:
        """Equal where equal seeds give equal answers: the program's version and the parts in use."""
        stack = self.backend.limits.stack if self.backend.limits else ""
        return f"narrows-{version('narrows')}-{hashlib.sha256(stack.encode()).hexdigest()[:8]}"

    async def encode_chat(self, messages: Any, add_generation_prompt: bool, variables: dict[str, Any]) -> list[int]:
        """Ids of a conversation. Raises ApiError."""
        encode = self.chat_template.encode
        return await in_thread("messages", encode, messages, add_generation_prompt, **variables)

    async def encode(self, text: str, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Ids of a text. Raises ApiError."""
        return await in_thread("prompt", self.tokenizer.encode, text, add_special, parse_special)

    async def decode(self, ids: list[int]) -> str:
        """Text of ids. Raises ApiError."""
        return await in_thread("tokens", self.tokenizer.decode, ids)

    def submit(
        self,
        prompts: Sequence[list[int]],
        params: SamplingParams,
        caller: Caller,
        param: str,
        cache_salt: str | None = None,
        priority: int | None = None,
        embed: bool = False,
    ) -> Call:
        """Hands prompts to the engine once everything about them is found to be acceptable.

        With `embed` it gives their embeddings instead of answers. `param` names the field the prompts came from.
        Raises ApiError.
        """
        limits = self.backend.limits
        if limits is not None:
            params.check_vocabulary(limits.vocab_size)
            try:
                prompts = [
                    check_prompt(p, limits.vocab_size, limits.max_model_len, self.tokenizer.bos_id) for p in prompts
                ]
            except ContextLengthError as error:
                raise ApiError(400, str(error), param=param, code="context_length_exceeded") from None
            except RequestError as error:
                raise ApiError(400, str(error), param=param) from None
        salt = json.dumps([caller.key, cache_salt or ""]) if caller.key or cache_salt else ""
        caller.log.update(model=self.name, prompt_tokens=sum(map(len, prompts)))
        call = self.backend.submit(
            [
                wire.Submit(
                    id=uuid.uuid4().hex,
                    prompt=prompt,
                    params=params,
                    seed=fresh_seed() if params.seed is None else params.seed,
                    salt=salt,
                    deadline=caller.deadline,
                    owner=caller.key,
                    priority=priority or 0,
                    embed=embed,
                )
                for prompt in prompts
            ]
        )
        caller.calls.append(call)
        return call

    def check_count(self, num_answers: int, param: str = "n") -> None:
        """Raises ApiError for a request that asks for more answers than could ever be taken; `param` says how many."""
        limits = self.backend.limits
        most = limits.max_num_seqs + self.backend.max_queued if limits else num_answers
        if num_answers > most:
            raise ApiError(400, f"the request asks for {num_answers} answers; at most {most} are taken", param=param)


async def in_thread(param: str, work: Callable[..., T], *args: Any, **variables: Any) -> T:
    """Work on texts, away from the loop that serves everybody. Raises ApiError on behalf of the field."""
    try:
        return await asyncio.to_thread(work, *args, **variables)
    except (TemplateError, TokenizerError) as error:
        raise ApiError(400, str(error), param=param) from None


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """One model to serve."""

    name: str
    path: Path
    load: wire.Options

    @classmethod
    def make(cls, name: str, path: Path, **options: Any) -> ModelOptions:
        return cls(name, path, wire.Options(address="", model=str(path), **options))


class Gateway:
    """All models of a server."""

    def __init__(self, settings: Settings, options: Sequence[ModelOptions], on_fatal: Any) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self.tracing = Tracing(settings.otlp_endpoint) if settings.otlp_endpoint else None
        self.draining = False
        self._trials = Trials()
        self.num_watchers = 0  # of figures
        self.models: dict[str, Served] = {}
        for o in options:
            metrics = ModelMetrics(self.metrics, o.name)
            backend = Backend(
                o.name,
                o.load,
                metrics,
                max_queued=settings.max_queued_requests,
                stall_timeout=settings.stall_timeout,
                on_fatal=on_fatal,
            )
            self.models[o.name] = Served(o.name, Texts.load(o.path), backend, self._trials)
        self.metrics.watch(self.backends)

    @property
    def backends(self) -> list[Backend]:
        return [served.backend for served in self.models.values()]

    def model(self, name: str | None) -> Served:
        """The model a request names; it may leave the name out where there is one model. Raises ApiError."""
        if name is None and len(self.models) == 1:
            return next(iter(self.models.values()))
        known = ", ".join(self.models)
        if name is None:
            raise ApiError(400, f"model is missing; there is {known}", param="model")
        if name not in self.models:
            message = f"The model `{name[:100]}` does not exist; there is {known}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.models[name]

    def fail_all(self) -> None:
        """Ends everything under way, because the server is going."""
        self._trials.close()
        for backend in self.backends:
            backend.fail_all(ApiError(503, "the server is shutting down", code="unavailable"))
