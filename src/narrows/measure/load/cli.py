"""``narrows bench serve`` and ``narrows bench overhead``."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Annotated, Any

import typer

SERVE_EPILOG = (
    "Examples:\n\nnarrows bench serve smollm2 --rate 0.5 --num-requests 50 --slo ttft=2,tpot=0.1 --plot load.png\n\n"
    "narrows bench serve --url http://127.0.0.1:8080 --trace azure-conv --data data --scale 0.1 --num-requests 100"
)
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Out = Annotated[Path | None, typer.Option(help="Also write the result, as JSON, to this file.")]
Threads = Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Of our own server.")]
StackLine = Annotated[str, typer.Option(help='Parts of our own server, e.g. "scheduler=continuous:budget=128".')]


def serve(
    model: Annotated[str | None, typer.Argument(help="A model to serve and measure; or give --url.")] = None,
    url: Annotated[str | None, typer.Option(help="An OpenAI-compatible server that runs already.")] = None,
    model_name: Annotated[
        str | None, typer.Option(help="What that server calls the model; default: its first.")
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="A trace to replay: a file, or azure-code, azure-conv, mooncake-conv, mooncake-synthetic in --data."
        ),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of the data sets that traces are in.")] = None,
    num_requests: Annotated[
        int | None, typer.Option(min=1, help="Only so many of the trace; without one, 100 unless given.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Poisson arrivals a second, instead of the trace's; inf sends all at once. Default: 1."),
    ] = None,
    scale: Annotated[float, typer.Option(help="Replay the trace so many times as fast.")] = 1.0,
    lengths: Annotated[float, typer.Option(help="Prompts and answers so many times as long as in the trace.")] = 1.0,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt, without a trace.")] = 256,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer, without a trace.")] = 64,
    slo: Annotated[str, typer.Option(help="Bounds in seconds that a good request keeps.")] = "ttft=2,tpot=0.1",
    ignore_eos: Annotated[
        bool, typer.Option(help="Ask for answers of full length; turn it off for servers that refuse the field.")
    ] = True,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds without a piece after which a request failed.")] = 600,
    seed: Annotated[int, typer.Option(help="Of arrivals and prompts.")] = 0,
    stack: StackLine = "",
    threads: Threads = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Of our own server.")] = None,
    quality: Annotated[Path | None, typer.Option(help="Result of `narrows eval`, which a lossy stack needs.")] = None,
    as_json: Json = False,
    out: Out = None,
    plot: Annotated[Path | None, typer.Option(help="Draw latencies into this .png or .svg file.")] = None,
) -> None:
    """Load on a server: requests arrive whatever became of earlier ones; latencies, throughput, goodput, errors.

    The server at --url is sent the key in $OPENAI_API_KEY, if there is one.
    """
    from narrows.measure import honesty
    from narrows.measure.load import arrivals as load
    from narrows.measure.load.client import Target
    from narrows.measure.load.figures import journal, parse_slo, summary
    from narrows.measure.load.own import own_server
    from narrows.measure.output import print_table, write
    from narrows.measure.provenance import provenance
    from narrows.models.hub import resolve
    from narrows.stack import Stack

    bounds = parse_slo(slo)
    if (model is None) == (url is None):
        raise ValueError("give either MODEL, to serve and measure it, or --url of a server that runs")
    for name, value in (("--rate", rate), ("--scale", scale), ("--lengths", lengths)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} is {value:g}; it must be above 0")
    if trace is not None:
        requests = load.read_trace(load.find_trace(trace, data), num_requests)
    else:
        requests = [load.Arrival(0, prompt_tokens, output_tokens)] * (num_requests or 100)
    requests = load.shaped(requests, scale=scale, lengths=lengths)
    if rate is not None or trace is None:
        requests = load.poisson(requests, rate or 1.0, seed)

    path = resolve(model) if model else None
    parts = Stack.parse(stack)
    figures = honesty.quality_of(parts, path, [quality] if quality else None) if path else []
    settings: dict[str, Any] = {"trace": trace and Path(trace).name, "scale": scale, "lengths": lengths, "seed": seed}
    settings |= {} if trace else {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    facts: dict[str, Any] = {"settings": settings | {"rate": "inf" if rate == float("inf") else rate}}
    with contextlib.ExitStack() as opened:
        if model:
            url = opened.enter_context(own_server(model, *_options(stack, threads, max_model_len)))
            facts["stack"] = str(parts)
        assert url is not None
        key = None if model else os.environ.get("OPENAI_API_KEY")  # no option: the command is part of the result
        target = Target(url, model_name or "", key, ignore_eos, timeout)
        name, system, outcomes = asyncio.run(_measure(target, requests, seed))
    found = summary(outcomes, bounds)
    rows = [{"time": key, **values} for key, values in found["times"].items() if values]
    result = {
        "kind": "serve",
        "system": system,
        "server": name,
        **facts,
        **found,
        **({"quality": figures} if figures else {}),
    }
    result |= {"requests_sent": journal(outcomes), "provenance": provenance(threads=threads, model=path)}
    text = write(result, out)
    if as_json:
        typer.echo(text)
    else:
        if rows:
            print_table(f"{name}: {found['completed']} of {found['requests']} requests", rows)
        typer.echo(_line(found))
        for kind, count in found["errors"].items():
            typer.echo(f"failed: {count} with {kind}")
        if figures:
            typer.echo(honesty.line(figures))
    if plot is not None:
        from narrows.measure.plot import load as draw

        draw(result, plot)


def overhead(
    model: Annotated[str, typer.Argument(help="A short name, a .gguf file, a model directory, or a Hugging Face id.")],
    streams: Annotated[int, typer.Option(min=1, help="Requests at a time.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt.")] = 64,
    output_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="How often both are measured, in turn.")] = 3,
    threads: Threads = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """What HTTP takes: tokens per second through our server, beside those of the engine alone on the same prompts."""
    from narrows import LLM
    from narrows.machine import default_threads
    from narrows.measure.load import overhead as bench
    from narrows.measure.load.own import own_server
    from narrows.measure.output import print_table, with_bar, write
    from narrows.measure.provenance import provenance

    count = threads or default_threads()[0]
    llm = LLM(model, num_threads=count)
    with own_server(model, "--threads", str(count)) as url:
        shape = {"num_prompt": prompt_tokens, "num_output": output_tokens}
        measured = bench.rounds(llm, url, streams=streams, **shape, num_rounds=rounds, seed=0)
        rows = list(with_bar(measured, rounds, "overhead"))
    lost = bench.overhead(rows)
    result = {"kind": "overhead", "streams": streams, **shape, "rows": rows, "overhead": lost}
    text = write(result | {"provenance": provenance(threads=count, model=llm.loaded.path)}, out)
    if as_json:
        typer.echo(text)
        return
    print_table(f"{streams} streams, output tokens/s", rows)
    typer.echo(f"HTTP takes {lost:.1%} of the engine's speed (median of {rounds} rounds)")


async def _measure(target: Any, requests: Any, seed: int) -> tuple[str, str, Any]:
    """The model's name at the server, the server's own, and the outcomes."""
    from dataclasses import replace

    from narrows.measure.load.client import calibrate, find_model, run
    from narrows.measure.load.texts import Texts
    from narrows.progress import bar

    texts = Texts(seed)
    async with target.client() as client:
        model, system = await find_model(client, target.model)
        target = replace(target, model=model)
        await calibrate(client, target, texts)
        prompts = [texts.prompt(request, i) for i, request in enumerate(requests)]
        with bar("requests", len(requests), still=True) as done:
            return model, system, await run(client, target, requests, prompts, done)


def _options(stack: str, threads: int | None, max_model_len: int | None) -> list[str]:
    given = {"--stack": stack or None, "--threads": threads, "--max-model-len": max_model_len}
    return [text for name, value in given.items() if value is not None for text in (name, str(value))]


def _line(found: dict[str, Any]) -> str:
    bounds = ", ".join(f"{name} {value:g} s" for name, value in found["slo"].items()) or "no bounds"
    speed = f"{found['output_tokens_per_second']:,.1f} output tokens/s, {found['requests_per_second']:.3f} requests/s"
    good = f"{found['good']} of {found['requests']} requests were good ({bounds}), {found['goodput']:.3f} a second"
    return f"{speed}; {good}"
