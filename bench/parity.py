"""The native forward against transformers on the same GGUF file: KL divergence and first choices by position.

`python bench/parity.py MODEL --transformers PYTHON --text FILE`, PYTHON having torch, transformers and gguf.
transformers reads the file's weights into float32; both see the same token ids.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

REFERENCE = """
import sys, numpy, torch, transformers
folder, name, ids, out = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
with torch.inference_mode():
    logits = model(torch.from_numpy(numpy.load(ids)).long()[None]).logits[0]
numpy.save(out, logits.float().numpy())
"""


def log_softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    x = x.astype(np.float64) - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def main(
    model: Annotated[str, typer.Argument(help="A short name or a .gguf file.")],
    transformers: Annotated[Path, typer.Option(help="A Python that has torch, transformers and gguf.")],
    text: Annotated[Path, typer.Option(help="The text to read.")],
    tokens: Annotated[int, typer.Option(min=2, help="How much of it.")] = 256,
) -> None:
    """Prints mean and worst KL in nats, and how often the first choice is the same."""
    from narrows.loader import load
    from narrows.models.hub import resolve
    from narrows.native import PAGE_SIZE
    from narrows.types import ForwardBatch

    path = resolve(model)
    loaded = load(path, max_model_len=tokens)
    ids = np.array(loaded.tokenizer.encode(text.read_text())[:tokens], np.int32)
    rows, ends = np.arange(len(ids), dtype=np.int32), np.array([len(ids)], np.int32)
    pages = np.arange(-(-len(ids) // PAGE_SIZE), dtype=np.int32)[None]
    got = loaded.model.forward(ForwardBatch(ids, rows, np.array([0, len(ids)], np.int32), ends, pages, rows)).logits
    with tempfile.TemporaryDirectory() as folder:
        given, wanted = Path(folder, "ids.npy"), Path(folder, "logits.npy")
        np.save(given, ids)
        subprocess.run([transformers, "-c", REFERENCE, path.parent, path.name, given, wanted], check=True)
        want = np.load(wanted)[:, : got.shape[1]]
    p, q = log_softmax(want), log_softmax(got)
    kl = (np.exp(p) * (p - q)).sum(-1)
    same = float((want.argmax(-1) == got.argmax(-1)).mean())
    print(json.dumps({"model": path.name, "tokens": len(ids), "mean_kl": kl.mean(), "max_kl": kl.max(), "top1": same}))


if __name__ == "__main__":
    try:
        typer.run(main)
    except ValueError as error:
        sys.exit(f"error: {error}")
