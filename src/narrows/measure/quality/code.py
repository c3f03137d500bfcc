"""Programs a model writes, judged by tests: pass@1, greedy.

HumanEval: Chen et al., arXiv:2107.03374, with its stop sequences for base models. MBPP: Austin et al.,
arXiv:2108.07732, its test split being task ids 11 to 510. Models with a chat template are asked for a function.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .base import DataError, Item, Metric, Record
from .datasets import Row, find, read_jsonl, unique
from .generate import answers, ask, is_chat
from .sandbox import Outcome, Sandbox

if TYPE_CHECKING:
    from narrows import LLM

MAX_COMPLETION = 8192  # characters kept in a record
_BLOCK = re.compile(
    r"```[ \t]*(?:python|py)?[^\S\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE | re.IGNORECASE
)


def extract(text: str, name: str = "") -> str:
    """The code in an answer: the first fenced block that defines `name`, else the first, else the whole text."""
    blocks = [m.group(1) for m in _BLOCK.finditer(text)]
    defining = [b for b in blocks if _defines(b, name)]
    return (defining or blocks or [text])[0]


def complete(text: str, name: str = "") -> bool:
    """Whether the block that defines `name` has been closed, so that the rest of the answer is not needed."""
    if "```" not in text:
        return False
    return any(_defines(m.group(1), name) and m.group(0).endswith("```") for m in _BLOCK.finditer(text))


def _defines(code: str, name: str) -> bool:
    pattern = rf"{re.escape(name)}\b" if name else "[A-Za-z_]"
    return re.search(rf"^\s*(?:async\s+)?def\s+{pattern}", code, re.MULTILINE) is not None


@dataclass(frozen=True)
class _Programs(ABC):
    """What both sets share: settings, generation, and the judging of programs beside it."""

    limit: int = 0  # problems; 0 = all
    max_tokens: int = 512
    timeout: int = 5  # seconds of CPU time for each program; three times as much by the clock
    sandbox: str = "on"  # "off" runs programs without protection

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("pass@1", "higher", "pass", key="pass"),)
    joint: ClassVar[bool] = False
    stop: ClassVar[tuple[str, ...]]  # for base models

    def __post_init__(self) -> None:
        if self.sandbox not in ("on", "off"):
            raise ValueError(f"sandbox is {self.sandbox!r}; it must be on or off")
        if self.limit < 0 or self.max_tokens < 1 or self.timeout < 1:
            raise ValueError("limit must be 0 or more, max_tokens and timeout 1 or more")

    def quick(self) -> Any:
        """Eight problems, shorter answers."""
        return replace(self, limit=min(self.limit or 8, 8), max_tokens=min(self.max_tokens, 256))

    @abstractmethod
    def _question(self, row: Row) -> str: ...

    @abstractmethod
    def _opening(self, row: Row) -> str: ...

    @abstractmethod
    def _name(self, row: Row) -> str: ...

    @abstractmethod
    def program(self, row: Row, text: str, chat: bool) -> str:
        """The program that decides about an answer: it comes to its end if the answer is right."""

    def run(self, model: LLM, baseline: LLM | None, items: Sequence[Item]) -> Iterator[Record]:
        """A record per problem: id, pass, reason, tokens, completion."""
        chat = is_chat(model)
        rows = [item.content for item in items]
        prompts = [ask(self._question(row)) if chat else self._opening(row) for row in rows]
        sandbox = Sandbox(protect=self.sandbox == "on", seconds=self.timeout, wall=3.0 * self.timeout)
        sandbox.check()  # before minutes of generation
        judged: dict[Future[Outcome], Record] = {}

        def ended(index: int, text: str) -> bool:
            return chat and complete(text, self._name(rows[index]))

        pool = ThreadPoolExecutor(2)
        try:
            for index, answer in answers(model, prompts, self.max_tokens, () if chat else self.stop, ended):
                record = {
                    "id": items[index].id,
                    "tokens": len(answer.token_ids),
                    "completion": answer.text[:MAX_COMPLETION],
                }
                judged[pool.submit(sandbox.run, self.program(rows[index], answer.text, chat))] = record
                for future in [f for f in judged if f.done()]:
                    yield _record(judged.pop(future), future.result())
            for future, record in judged.items():
                yield _record(record, future.result())
        finally:
            pool.shutdown(cancel_futures=True)


def _record(record: Record, outcome: Outcome) -> Record:
    return record | {"pass": outcome.passed, "reason": outcome.reason}


@dataclass(frozen=True)
class HumanEval(_Programs):
    """164 functions to complete from their signature and docstring."""

    dataset: ClassVar[str | None] = "humaneval"
    stop: ClassVar[tuple[str, ...]] = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")

    def items(self, data: Path | None, model: LLM) -> list[Item]:
        """Problems of humaneval/HumanEval.jsonl[.gz]: task_id, prompt, test, entry_point."""
        path = find(data, "humaneval", "HumanEval.jsonl.gz", "HumanEval.jsonl")
        rows = read_jsonl(path, dict.fromkeys(("task_id", "prompt", "test", "entry_point"), str))
        return [Item(row["task_id"], row) for row in unique(path, rows, "task_id")[: self.limit or None]]

    def _question(self, row: Row) -> str:
        return (
            "Complete this Python function. Answer with the full function, with the imports it needs, "
            f"in one ```python block.\n\n```python\n{row['prompt'].rstrip()}\n```"
        )

    def _opening(self, row: Row) -> str:
        return row["prompt"]

    def _name(self, row: Row) -> str:
        return row["entry_point"]

    def program(self, row: Row, text: str, chat: bool) -> str:
        name, opening = row["entry_point"], row["prompt"]
        block = extract(text, name) if chat else text
        if chat and _defines(block, name):
            opening = opening[: max(opening.rfind(f"def {name}"), 0)] + "\n"  # imports and helpers
        code = opening + block  # else the block goes on where the prompt ends
        return f"{code}\n\n{row['test']}\n\ncheck({name})"


@dataclass(frozen=True)
class Mbpp(_Programs):
    """Short functions described in a sentence, with the assertions they must pass."""

    dataset: ClassVar[str | None] = "mbpp"
    stop: ClassVar[tuple[str, ...]] = ("\nclass", "\nassert", '\n"""', "\nprint", "\nif", "\n```")

    def items(self, data: Path | None, model: LLM) -> list[Item]:
        """Problems of mbpp/mbpp.jsonl: task_id, text, test_list. The test split if it is there, else every row."""
        path = find(data, "mbpp", "mbpp.jsonl", "mbpp.jsonl.gz")
        rows = read_jsonl(path, {"task_id": (int, str), "text": str, "test_list": list})
        for row in unique(path, rows, "task_id"):
            if not row["test_list"] or not all(isinstance(test, str) for test in row["test_list"]):
                raise DataError(f"{path}: task_id {row['task_id']}: test_list must be a list of one or more texts")
        split = [row for row in rows if isinstance(row["task_id"], int) and 11 <= row["task_id"] <= 510]
        return [Item(f"mbpp/{row['task_id']}", row) for row in (split or rows)[: self.limit or None]]

    def _question(self, row: Row) -> str:
        tests = "\n".join(row["test_list"])
        return (
            f"{row['text'].strip()}\nAnswer with the full Python function in one ```python block. "
            f"It must pass these tests:\n\n```python\n{tests}\n```"
        )

    def _opening(self, row: Row) -> str:
        return '"""\n' + "\n".join((row["text"].strip(), *row["test_list"])) + '\n"""\n'

    def _name(self, row: Row) -> str:
        """The function that the first test calls, when that can be told."""
        known = re.findall(r"^def\s+(\w+)", row.get("code") or "", re.MULTILINE)
        called = re.findall(r"(\w+)\s*\(", row["test_list"][0])
        return next((name for name in called if name in known), "")

    def program(self, row: Row, text: str, chat: bool) -> str:
        code = extract(text, self._name(row)) if chat else text
        return "\n\n".join((code, row.get("test_setup_code") or "", "\n".join(row["test_list"])))
