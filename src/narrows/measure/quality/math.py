r"""GSM8K (Cobbe et al., arXiv:2110.14168): school problems in words, the number at the end of the answer being right.

Zero-shot chain of thought, greedy: the model is asked to reason and to end with \boxed{number}, as Qwen's and others'
published figures are; asked for the data set's own "#### number", small models take the mark for a heading.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .base import DataError, Item, Metric, Record
from .datasets import find, read_jsonl
from .generate import answers, ask, is_chat

if TYPE_CHECKING:
    from narrows import LLM

MAX_COMPLETION = 4096  # characters kept in a record
REQUEST = r"Reason step by step, and put the final answer, a number alone, in \boxed{} at the end."

_NUMBER = r"(?:(?<![\w)])[-\u2212])?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_MARKS = (
    re.compile(rf"\\boxed\{{[^\n\d]{{0,24}}?({_NUMBER})"),
    re.compile(rf"####[^\n\d]{{0,24}}?({_NUMBER})[^\w\n]{{0,4}}(?:[A-Za-z]+[^\w\n]{{0,3}}){{0,2}}$", re.MULTILINE),
    re.compile(rf"answer(?: is|:)[^\n\d]{{0,24}}?({_NUMBER})", re.IGNORECASE),
    re.compile(rf"({_NUMBER})"),
)
_FINAL = re.compile(rf"\\boxed\{{[^\n\d]{{0,24}}?{_NUMBER}[^\n}}]*\}}")


def extract(text: str) -> Decimal | None:
    r"""The number an answer ends with: that in the last \boxed{}, else on the last line of "#### number", else after
    the last "answer is", else the last there is. Commas, currency signs and a final full stop do not matter."""
    text = text.replace("{,}", ",").replace("\\!", "")
    text = re.sub(r"(?<=[-\u2212])\s*\\?[$\u00a3\u20ac]\s*", "", text)  # -$5
    for mark in _MARKS:
        if found := mark.findall(text):
            return Decimal(found[-1].replace(",", "").replace("\u2212", "-"))
    return None


@dataclass(frozen=True)
class Gsm8k:
    """Exact answers to school problems."""

    limit: int = 200  # problems; 0 = all
    max_tokens: int = 400

    metrics: ClassVar[tuple[Metric, ...]] = (Metric("exact", "higher", "pass", key="pass"),)
    joint: ClassVar[bool] = False
    dataset: ClassVar[str | None] = "gsm8k"

    def __post_init__(self) -> None:
        if self.limit < 0 or self.max_tokens < 1:
            raise ValueError("limit must be 0 or more, max_tokens 1 or more")

    def quick(self) -> Gsm8k:
        """Eight problems."""
        return replace(self, limit=min(self.limit or 8, 8), max_tokens=min(self.max_tokens, 256))

    def items(self, data: Path | None, model: LLM) -> list[Item]:
        """Problems of gsm8k/test.jsonl: question, answer ("... #### N")."""
        path = find(data, "gsm8k", "test.jsonl", "test.jsonl.gz")
        items = []
        for number, row in enumerate(read_jsonl(path, {"question": str, "answer": str}), 1):
            if "####" not in row["answer"] or (expected := extract(row["answer"])) is None:
                raise DataError(f"{path}, row {number}: field 'answer' must end with '#### number'")
            items.append(Item(f"gsm8k/{number - 1}", (row["question"], expected)))
        return items[: self.limit or None]

    def run(self, model: LLM, baseline: LLM | None, items: Sequence[Item]) -> Iterator[Record]:
        """A record per problem: id, pass, answer, expected, tokens, completion."""
        chat = is_chat(model)

        def prompt(question: str) -> Any:
            if chat:
                return ask(f"{question}\n\n{REQUEST}")
            return f"Question: {question}\nAnswer: Let's think step by step."

        prompts = [prompt(item.content[0]) for item in items]
        stop = () if chat else ("\nQuestion:", "\n\n\n")
        for index, answer in answers(model, prompts, self.max_tokens, stop, lambda _, text: bool(_FINAL.search(text))):
            expected, given = items[index].content[1], extract(answer.text)
            yield {
                "id": items[index].id,
                "pass": given == expected,
                "answer": None if given is None else str(given),
                "expected": str(expected),
                "tokens": len(answer.token_ids),
                "completion": answer.text[:MAX_COMPLETION],
            }
