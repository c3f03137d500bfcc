"""llama.cpp's own speculation, beside ours: its server answers the same prompts, given and returned as tokens."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ...drafters.model import DraftModel
from ...drafters.ngram import NGram
from ...models.hub import resolve
from ...sampling import SamplingParams
from ...stack import Stack
from ..servers import answers, running
from .systems import with_libraries

CONTEXT = 4096  # tokens of a request


def llama_servers(
    folder: Path, model: Path, drafts: Sequence[str], threads: int
) -> dict[str, Callable[[int], AbstractContextManager[LlamaServer]]]:
    """By name what starts llama.cpp for so many requests at once: without drafts, and with each draft that it has too.

    Raises ValueError where its server is not in the folder.
    """
    program = folder / "llama-server"
    if not program.is_file():
        raise ValueError(f"--llamacpp: there is no {program.name} in {folder}")
    return {
        f"llama.cpp {draft}": partial(llama_server, program, model, options, threads)
        for draft in ("none", *drafts)
        if (options := arguments(draft)) is not None
    }


def arguments(draft: str) -> list[str] | None:
    """llama-server's, for a draft in our words; None for one that it has not.

    Prompt lookup has its own defaults there, other than ours.
    """
    match Stack.parse(f"draft={draft}").draft:
        case None:
            return []
        case NGram():
            return ["--spec-type", "ngram-simple"]
        case DraftModel(model=name, k=k):
            return ["--spec-type", "draft-simple", "-md", str(resolve(name)), "--spec-draft-n-max", str(k)]
    return None


@contextmanager
def llama_server(program: Path, model: Path, options: Sequence[str], threads: int, batch: int) -> Iterator[LlamaServer]:
    """A server for `batch` requests at once, without flash attention, which is slower on a CPU.

    Raises StartError with its last words when it does not start.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [program, "-m", model, "-t", threads, "-tb", threads, "-c", CONTEXT * batch, "-np", batch, "-fa", "off"]
    command += ["--host", "127.0.0.1", "--port", port, *options]
    url = f"http://127.0.0.1:{port}"
    with running(program.name, command, lambda _: url, "/health", with_libraries(program)):
        yield LlamaServer(url, batch)


@dataclass(slots=True)
class LlamaServer:
    """A server that runs at `url`, and what its answers said of themselves."""

    url: str
    batch: int
    timings: list[dict[str, Any]] = field(default_factory=list)

    def is_ready(self) -> bool:
        return answers(f"{self.url}/health")

    def read(self, prompts: Sequence[Sequence[int]]) -> None:
        self.anew().answer(prompts, SamplingParams(temperature=0, max_tokens=1, ignore_eos=True))

    def answer(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> tuple[list[list[int]], float]:
        """The token ids of each answer, and the tokens/s after the first of all of them."""
        with ThreadPoolExecutor(self.batch) as pool:
            done = list(pool.map(lambda prompt: self._ask(prompt, params), prompts))
        found = [answer["timings"] for answer in done]
        self.timings += found
        return [answer["tokens"] for answer in done], sum(timing["predicted_per_second"] for timing in found)

    def _ask(self, prompt: Sequence[int], params: SamplingParams) -> dict[str, Any]:
        body = {
            "prompt": list(prompt),
            "n_predict": params.max_tokens,
            "temperature": params.temperature,
            "samplers": ["temperature"],
            "seed": params.seed or 0,
            "ignore_eos": params.ignore_eos,
            "return_tokens": True,
            "cache_prompt": True,
        }
        asked = urllib.request.Request(
            f"{self.url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=3600) as answer:
            return json.load(answer)

    def figures(self) -> dict[str, Any]:
        """As ours of drafts: tokens kept a forward and drafted a token."""
        tokens = sum(timing["predicted_n"] for timing in self.timings)
        drafted, kept = (sum(timing.get(key, 0) for timing in self.timings) for key in ("draft_n", "draft_n_accepted"))
        forwards = max(tokens - kept, 1)
        return {
            "acceptance_length": tokens / forwards,
            "target_forwards_per_token": forwards / max(tokens, 1),
            "drafted_tokens_per_token": drafted / max(tokens, 1),
            "num_tokens": tokens,
        }

    def anew(self) -> LlamaServer:
        return LlamaServer(self.url, self.batch)
