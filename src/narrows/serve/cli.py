"""`narrows serve`."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from ..methods import near
from .settings import KEY_VARIABLE, Settings, read_api_keys

EPILOG = "Example: narrows serve smollm2 --api-key-file keys.txt"
_DEFAULT: dict[str, Any] = {f.name: f.default for f in fields(Settings)}


def _configure(context: typer.Context, file: Path | None) -> Path | None:
    """Makes what a TOML file says the default of each option. Raises ValueError naming the file and the key."""
    if file is None:
        return None
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not TOML: {error}") from None
    known = {p.name: None for p in context.command.params if p.name and p.name not in ("config", "help")}
    given = {key.replace("-", "_"): value for key, value in values.items()}
    for key, value in given.items():
        if key not in known:
            raise ValueError(f"{file}: there is no option {key!r}{near(key, known)}")
        if isinstance(value, dict):
            raise ValueError(f"{file}: {key} is a table; options are plain values or lists")
    context.default_map = {**(context.default_map or {}), **given}
    return file


def serve(
    models: Annotated[
        list[str], typer.Argument(help="Short names, .gguf files, model directories, or Hugging Face ids.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(callback=_configure, is_eager=True, help="A TOML file with options by name, and models."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What requests call a model; once for each model, in their order.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="Weight format, as for run.")] = None,
    prefill: Annotated[str | None, typer.Option(help="Weights that read prompts, as for run: same or dense.")] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, help="Threads of each model (default: an even share).")
    ] = None,
    stack: Annotated[str | None, typer.Option(help='Parts to use, e.g. "scheduler=continuous:max_num_seqs=8".')] = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", "-c", min=1, help="Context length, in tokens.")
    ] = None,
    kv_cache_bytes: Annotated[int | None, typer.Option(min=1, help="Size of each model's KV cache.")] = None,
    api_key: Annotated[
        list[str] | None, typer.Option(help=f"A key requests must carry; may be repeated; also ${KEY_VARIABLE}.")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="A file of keys, one a line.")] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A name the Host header may carry besides loopback; * is any.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="An origin whose web pages may ask, e.g. https://example.org; * is any.")
    ] = None,
    max_queued_requests: Annotated[
        int, typer.Option(min=0, help="Answers that may wait, beyond those that run; then 429.")
    ] = _DEFAULT["max_queued_requests"],
    requests_per_minute: Annotated[
        float, typer.Option(min=0, help="Requests of each API key, or of all without keys; then 429. 0 is any number.")
    ] = _DEFAULT["requests_per_minute"],
    max_body_bytes: Annotated[int, typer.Option(min=1024, help="Largest request body.")] = _DEFAULT["max_body_bytes"],
    body_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds in which a head, and then a body, must arrive.")
    ] = _DEFAULT["body_timeout"],
    send_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a client that takes nothing is left.")
    ] = _DEFAULT["send_timeout"],
    request_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds after which a request is given up.")
    ] = _DEFAULT["request_timeout"],
    shutdown_timeout: Annotated[
        float, typer.Option(min=0, max=86400, help="Seconds that requests have to finish after SIGTERM.")
    ] = _DEFAULT["shutdown_timeout"],
    stall_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds without a step, with work to do, until a process is replaced.")
    ] = _DEFAULT["stall_timeout"],
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="Send a trace of each request here, e.g. http://localhost:4318.")
    ] = None,
) -> None:
    """Serve models over HTTP, the way OpenAI's clients expect it."""
    settings = Settings(
        host=host,
        port=port,
        api_keys=read_api_keys(api_key or [], api_key_file),
        allowed_hosts=tuple(allowed_host or ()),
        cors_origins=tuple(cors_origin or ()),
        max_queued_requests=max_queued_requests,
        requests_per_minute=requests_per_minute,
        max_body_bytes=max_body_bytes,
        body_timeout=body_timeout,
        send_timeout=send_timeout,
        request_timeout=request_timeout,
        shutdown_timeout=shutdown_timeout,
        stall_timeout=stall_timeout,
        otlp_endpoint=otlp_endpoint,
    )
    names = served_model_name or [_name(model) for model in models]
    if len(names) != len(models):
        raise ValueError(f"{len(models)} models but {len(names)} --served-model-name")
    if double := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two models would be called {double!r}: give each a --served-model-name")

    try:
        from . import server
        from .gateway import ModelOptions
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("narrows"):
            raise
        raise ValueError(f"serving needs {error.name}: pip install 'narrows[serve]'") from None
    from ..machine import default_threads
    from ..models import hub
    from ..stack import Stack

    stack = f"{stack or ''} prefill={prefill}" if prefill else stack
    Stack.parse(stack or "")  # a bad flag is reported before anything starts
    server.setup_logging()
    options = [
        ModelOptions.make(
            name,
            hub.resolve(model),
            stack=stack,
            weights=weights,
            num_threads=threads or max(1, default_threads()[0] // len(models)),
            max_model_len=max_model_len,
            kv_cache_bytes=kv_cache_bytes,
        )
        for name, model in zip(names, models, strict=True)
    ]
    server.run(settings, options)


def _name(model: str) -> str:
    """What a model is called unless told: as it was asked for, but no path of this machine."""
    path = Path(model).expanduser()
    if not path.exists():
        return model
    return path.resolve().stem if path.suffix == ".gguf" else path.resolve().name
