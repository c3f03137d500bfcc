"""``narrows train``: parts that are learned."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from narrows.compress.cli import PROMPTS, amount, stage
from narrows.progress import resumable

app = typer.Typer(no_args_is_help=True, help="Train what makes a model faster.")

EPILOG = (
    "Examples:\n\n"
    "narrows train head smollm2    (then: narrows run smollm2 --draft head)\n\n"
    "narrows train head qwen-1.5b --data problems.jsonl --data chats.jsonl --tokens 500k\n\n"
    "narrows train head smollm2 --from smollm2-head --loops 3 --out smollm2-loops"
)


@app.command(epilog=EPILOG)
def head(
    model: Annotated[
        str, typer.Argument(help="A short name (smollm2), a .gguf file, a model directory, or a Hugging Face id.")
    ],
    data: Annotated[
        list[Path] | None,
        typer.Option(help=f"{PROMPTS}; may be repeated. Default: openers."),
    ] = None,
    tokens: Annotated[str, typer.Option(help="Tokens that the model writes to be trained on, e.g. 500k.")] = "100k",
    out: Annotated[
        Path | None, typer.Option(help="The folder to write; default: NAME-head in the models directory.")
    ] = None,
    begin: Annotated[
        Path | None, typer.Option("--from", help="Go on from this trained head, by folder or by name.")
    ] = None,
    loops: Annotated[int, typer.Option(help="Learn to draft up to so many stages in a row: 2 to 4, with --from.")] = 1,
    depth: Annotated[int, typer.Option(help="Tokens of a stage that are learned on the head's own states.")] = 3,
    epochs: Annotated[int, typer.Option(help="How often each text is read.")] = 4,
    vocab: Annotated[int, typer.Option(help="Tokens that can be drafted: the commonest of the text.")] = 4096,
    ffn: Annotated[
        int,
        typer.Option(
            help="Width of the feed-forward part, a multiple of 64; default: the model's, which may be large."
        ),
    ] = 0,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    batch: Annotated[int, typer.Option(help="Tokens of a batch.")] = 400,
    length: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 384,
    temperature: Annotated[float, typer.Option("--temperature", "--temp", help="Of the sampling.")] = 0.7,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same head.")] = 0,
    threads: Annotated[int | None, typer.Option("--threads", "-t", min=1, help="Threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train a head that drafts for a model (EAGLE-3), on text the model writes itself.

    The result is a folder that `--draft head` finds. A run that was stopped goes on where it was when the same command
    is given again; the text is kept beside it for other heads.
    """
    from narrows.checkpoints import open_checkpoint
    from narrows.models import hub
    from narrows.train.base import Course, Texts, TrainError

    texts = Texts(amount("--tokens", tokens), tuple(data or ()), length, temperature, seed)
    course = Course(epochs, depth, loops, vocab, rate, batch, ffn, seed)
    if loops > 1 and begin is None:
        raise TrainError("--loops continues a trained head: name it with --from")
    if begin is not None:
        begin = next((p for p in (begin.expanduser(), hub.models_dir() / begin) if p.is_dir()), None)
        if begin is None:
            raise TrainError("--from: there is no such folder, and none of that name in the models directory")
    try:
        import torch
    except ImportError:
        raise TrainError("training needs torch: pip install 'narrows[train]'") from None
    path = hub.resolve(model)
    stem = re.sub(r"\.gguf$", "", Path(model).name)
    where = out or hub.models_dir() / f"{stem}-head{'' if loops == 1 else '-loops'}"
    if where.exists():
        raise TrainError(f"{where} exists already: remove it, or choose another --out")

    from narrows import LLM
    from narrows.train.curves import draw
    from narrows.train.run import CURVES, Training

    llm = LLM(path, "draft=none", num_threads=threads)
    torch.set_num_threads(llm.num_threads)
    training = Training(llm, model, open_checkpoint(hub.parent(path)), where, texts, course, begin, stage)
    with resumable(training.work):
        info = training.run()
    drawn = draw(json.loads((where / CURVES).read_text()), f"{stem}, {info['tokens']:,} tokens", where / "training.png")
    size = sum(f.stat().st_size for f in where.glob("*.safetensors"))
    if as_json:
        typer.echo(json.dumps({"path": str(where), "bytes": size, **info}, indent=2, allow_nan=False))
        return
    shares = ", ".join(f"{share:.0%}" for share in info["right"])
    typer.echo(f"of drafts on text that was held out, the first 1, 2, ... tokens are right in {shares}")
    without = "" if drawn else " (no picture: that needs matplotlib)"
    typer.echo(f"{where}: {size / 1e6:,.1f} MB; {info['seconds']:,.0f} s of training{without}")
