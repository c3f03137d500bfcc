"""The ``narrows`` command. Heavy modules are imported inside the commands, so that ``--help`` is instant."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from narrows.compress import cli as compression
from narrows.measure.cli import app as bench
from narrows.measure.frontier import cli as frontiers
from narrows.measure.quality import cli as quality
from narrows.serve import cli as serving
from narrows.train.cli import app as training

if TYPE_CHECKING:
    from narrows import LLM
    from narrows.repl import Answer

app = typer.Typer(
    name="narrows",
    help="Decode large language models for as few bytes per token as your quality budget allows.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    str, typer.Argument(help="A short name (smollm2), a .gguf file, a model directory, or a Hugging Face id.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Threads = Annotated[
    int | None, typer.Option("--threads", "-t", min=1, help="Threads (default: the cores this process may use).")
]
Weights = Annotated[
    str | None, typer.Option(help="Weight format: auto keeps the file's own; int4, int8, bf16, ... repack it.")
]
Prefill = Annotated[
    str | None, typer.Option(help="Weights that read prompts: same as those that write, or dense: the unmodified ones.")
]


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        typer.echo(f"narrows {version('narrows')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="Examples:\n\n"
    'narrows run smollm2 "Why is the sky blue?"\n\n'
    "narrows run smollm2    (a chat, in a terminal)\n\n"
    "cat letter.txt | narrows run smollm2 --system 'Summarise the text.' -n 100\n\n"
    "narrows run smollm2 --raw 'Once upon a time' --temperature 0.8 --seed 1\n\n"
    "narrows run smollm2 'Invent a person.' --json-schema person.json"
)
def run(
    model: Model,
    prompt: Annotated[str | None, typer.Argument(help="What to answer; read from stdin when it is piped.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")
    ] = False,
    temperature: Annotated[
        float, typer.Option("--temperature", "--temp", help="0 always takes the likeliest token.")
    ] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens that sum to p.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Drop tokens less likely than this share of the likeliest.")
    ] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 1, repeating becomes less likely.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Longest answer, in tokens.")] = 512,
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be repeated.")] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(help="File with a JSON schema that the answer has to fit.", exists=True, dir_okay=False),
    ] = None,
    regex: Annotated[str | None, typer.Option(help="Regular expression that the whole answer has to match.")] = None,
    weights: Weights = None,
    prefill: Prefill = None,
    threads: Threads = None,
    draft: Annotated[
        str | None, typer.Option(help="Guess tokens ahead, same answer: ngram, head, model:model=NAME, one|other.")
    ] = None,
    draft_model: Annotated[str | None, typer.Option(help="A small model of the same vocabulary drafts.")] = None,
    stack: Annotated[str | None, typer.Option(help='Parts to use, e.g. "scheduler=continuous:budget=256".')] = None,
    max_model_len: Annotated[
        int | None, typer.Option("--max-model-len", "-c", help="Context length, in tokens.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer one prompt, or chat when there is none and this is a terminal."""
    form = {"json": json_schema.read_text(encoding="utf-8") if json_schema else None, "regex": regex}
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "max_tokens": max_tokens,
        "stop": stop or None,
        "structured_outputs": form if json_schema or regex is not None else None,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    interactive = prompt is None and sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    text = "" if interactive else sys.stdin.read() if prompt is None else prompt
    if not interactive and not text.strip():
        raise ValueError("the prompt is empty: give one as an argument or on stdin")
    if raw and (system or interactive):
        raise ValueError("--raw continues a given PROMPT as it is; it goes neither with --system nor with a chat")

    if draft and draft_model:
        raise ValueError(f"--draft-model is short for --draft model:model={draft_model}; give one of the two")
    if draft := draft or (draft_model and f"model:model={draft_model}"):
        stack = f"{stack or ''} draft={draft}"
    stack = f"{stack or ''} prefill={prefill}" if prefill else stack

    from narrows import LLM, SamplingParams

    SamplingParams(**settings)  # a bad flag is reported before a model is loaded
    llm = LLM(model, weights=weights, stack=stack, num_threads=threads, max_model_len=max_model_len)
    session = Session(llm, echo=not as_json)
    if interactive:
        _chat(session, settings, system)
        return
    messages = [{"role": "system", "content": system}] if system else []
    session.answer(text if raw else [*messages, {"role": "user", "content": text}], settings)
    if as_json:
        _print_json({"model": model} | session.result)


class Session:
    """Streams answers of one model to stdout and their cost to stderr; `result` is the last one, for ``--json``."""

    def __init__(self, llm: LLM, *, echo: bool) -> None:
        self.llm = llm
        self.echo = echo
        self.result: dict[str, Any] = {}

    def answer(self, prompt: str | list[dict[str, str]], settings: dict[str, Any]) -> Answer:
        """Answers a raw prompt or a conversation. Raises ValueError when the request is not acceptable."""
        from narrows import SamplingParams
        from narrows.ledger import summary
        from narrows.measure.bandwidth import bandwidth
        from narrows.repl import Answer, stop_on_interrupt

        with stop_on_interrupt() as stop, closing(self.llm.stream(prompt, SamplingParams(**settings))) as stream:
            for delta in stream:
                if self.echo:
                    typer.echo(delta, nl=False)
                if stop.requested:
                    break
        output = stream.output.outputs[0]
        gigabytes = bandwidth(self.llm.num_threads)  # after the answer, which it must not delay
        line = summary(output.metrics, gigabytes)
        if self.echo:
            typer.echo()
            typer.echo(line, err=True)
        self.result = {
            "text": output.text,
            "token_ids": output.token_ids,
            "finish_reason": output.finish_reason,
            "stack": str(self.llm.stack),
            "threads": self.llm.num_threads,
            "ledger": output.metrics.json(gigabytes),
        }
        return Answer(output.text, line, len(output.token_ids))


def _chat(session: Session, settings: dict[str, Any], system: str | None) -> None:
    from narrows import SamplingParams
    from narrows.repl import Repl, line_editing, setting_names

    typer.echo("Chat; /help shows the commands, /exit leaves.", err=True)
    with line_editing():
        Repl(
            answer=session.answer,
            validate=lambda s: SamplingParams(**s),
            names=setting_names(SamplingParams),
            settings=settings,
            system=system,
            show=lambda line: typer.echo(line, err=True),
        ).run()


@app.command(epilog="Example: narrows pull smollm2")
def pull(model: Model) -> None:
    """Fetch a model, if it is not here yet, and print where it is."""
    from narrows.models import hub

    typer.echo(str(hub.resolve(model)))


@app.command(epilog="Example: narrows models --json")
def models(as_json: Json = False) -> None:
    """List the models on this machine."""
    from narrows.models import hub

    found = hub.list_models()
    if as_json:
        _print_json([{**asdict(m), "path": str(m.path)} for m in found])
        return
    if not found:
        typer.echo(f"no models in {hub.models_dir()}; `narrows pull smollm2` fetches the default one")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table()
    table.add_column("name")
    table.add_column("family", overflow="fold")
    for column in ("parameters", "size", "context"):
        table.add_column(column, justify="right")
    table.add_column("path", overflow="fold")
    for m in found:
        known = (m.family, f"{m.num_parameters / 1e6:,.0f} M", f"{m.size / 1e6:,.0f} MB", f"{m.max_context:,}")
        table.add_row(m.name, *(known if m.problem is None else (m.problem, "", known[2], "")), str(m.path))
    Console().print(table)


app.add_typer(bench, name="bench")
app.command("eval", epilog=quality.EPILOG)(quality.evaluate)
app.command("frontier", epilog=frontiers.EPILOG)(frontiers.frontier)
app.command("serve", epilog=serving.EPILOG)(serving.serve)
app.command("compress", epilog=compression.EPILOG)(compression.compress)
app.add_typer(training, name="train")


@app.command(epilog="Example: narrows params > docs/sampling-table.md")
def params() -> None:
    """Print the sampling parameters, their ranges and defaults, as a markdown table."""
    from narrows import sampling

    typer.echo(sampling.markdown_table())


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _leave(number: int, _frame: object) -> None:
    """On a signal that asks to end: as an exception, so that children are stopped and files put away."""
    raise SystemExit(128 + number)


def main() -> None:
    """Runs the command line. What a user can get wrong is one line on stderr and exit code 2."""
    signal.signal(signal.SIGTERM, _leave)
    try:
        app()
    except (ValueError, OSError) as error:
        if os.environ.get("NARROWS_DEBUG"):
            raise
        typer.echo(f"narrows: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
