"""What a chat model is asked when it is given no prompts: every request about every subject."""

from __future__ import annotations

REQUESTS = (
    "Explain {} to someone who has never heard of it.",
    "Write a short story in which {} plays a part.",
    "Write a Python program that has to do with {}, with comments.",
    "What are the most common mistakes people make about {}? Answer with a list.",
    "Write a dialogue between two friends about {}.",
    "Summarise what is known about {} in a few paragraphs.",
    "Give step-by-step instructions for a project on {}.",
    "Write an article on {} for a local newspaper.",
)
SUBJECTS = (
    "the tides",
    "growing tomatoes",
    "railway timetables",
    "chess openings",
    "sorting a list of numbers",
    "glaciers",
    "the invention of the telephone",
    "keeping a budget",
    "migrating birds",
    "public libraries",
    "electric motors",
    "learning a language",
    "olive oil",
    "volcanoes",
    "a village market",
    "prime numbers",
    "sleep",
    "sailing boats",
    "the water cycle",
    "mountain rescue",
    "text files",
    "street music",
    "the Roman roads",
    "friendship",
)


def openers() -> list[str]:
    """All of them, so ordered that neighbours differ in both request and subject."""
    pairs = [
        (i % len(REQUESTS), (i + i // len(SUBJECTS)) % len(SUBJECTS)) for i in range(len(REQUESTS) * len(SUBJECTS))
    ]
    return [REQUESTS[request].format(SUBJECTS[subject]) for request, subject in pairs]
