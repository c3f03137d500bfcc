"""Beginnings of texts that the package can make itself: what a model writes when asked for something long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from narrows.sampling import SamplingParams

if TYPE_CHECKING:
    from narrows import LLM

OPENERS = (
    "Explain step by step how a bicycle stays upright, for a curious reader.",
    "Write a long story about a lighthouse keeper who finds a letter in a bottle.",
    "Describe the history of the printing press and what it changed.",
    "Write a Python module that reads a CSV file and prints statistics of every column, with comments.",
    "Compare the lives of bees and ants in detail.",
    "Give a detailed plan for a week of travel through Japan by train.",
    "Tell me everything a beginner should know about baking bread.",
    "Write a dialogue between a teacher and a student about the planets of the solar system.",
    "Explain how a computer stores and finds files, from the disk to the folder you see.",
    "Write an essay on why cities grow where rivers meet the sea.",
    "Describe how a vaccine is developed, tested and approved.",
    "Write the rules of a board game of your own invention, with an example of play.",
    "Explain the difference between weather and climate with many examples.",
    "Write a letter from a sailor on a long voyage in the eighteenth century.",
    "Describe how the human heart works and what keeps it healthy.",
    "Write a JavaScript function that validates an e-mail address, and explain every line.",
)


def opening(model: LLM, index: int) -> list[int]:
    """Token ids of opener `index` (they repeat after the last): as a chat, or as plain text for a base model."""
    text = OPENERS[index % len(OPENERS)]
    if model.chat_template.source is None:
        return model.tokenizer.encode(text + "\n\n")
    return model.chat_template.encode([{"role": "user", "content": text}])


def continuations(
    model: LLM, prompts: Sequence[Sequence[int]], lengths: Sequence[int], *, temperature: float = 0
) -> list[list[int]]:
    """What `model` writes after each prompt, that many tokens: greedily, or sampled with a seed for each prompt."""
    params = [
        SamplingParams(max_tokens=n, temperature=temperature, seed=i, ignore_eos=True, detokenize=False)
        for i, n in enumerate(lengths)
    ]
    return [answer.outputs[0].token_ids for answer in model.generate(prompts, params)]
