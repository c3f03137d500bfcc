"""From `SamplingParams.structured_outputs` to a compiled grammar of llguidance."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..sampling import ParamError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Between the tokens of JSON: a blank or two, or a new line and its indent. Unbounded, a model that likes blanks fills
# its answer with them; without any, models that were trained on spaced JSON close arrays too early.
# And oneOf is read as anyOf: the same for unions whose members exclude each other, which are nearly all there are.
JSON_OPTIONS: Any = {"whitespace_pattern": r"[ ]{1,2}|\n[ ]{0,32}", "coerce_one_of": True}
# Work in llguidance's units: about 20 ms to build the lexer and 15 ms a step; a state takes about 2 kB.
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_items_in_row": 2_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "verbose_errors": False,
}


def compile_grammar(vocabulary: LLTokenizer, kind: str, content: Any) -> LLMatcher:
    """A matcher at the start of a grammar of a kind: json, regex, grammar or choice. Raises ParamError."""
    from llguidance import LLMatcher, LLParserLimits

    field = f"structured_outputs.{kind}"
    try:
        grammar = _grammar(kind, content)
    except ValueError as error:
        raise ParamError(field, f"cannot be used: {brief(error)}") from None
    matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=LLParserLimits(**LIMITS))
    matcher.compute_bitmask()  # some faults show with the first step
    if matcher.is_error():
        raise ParamError(field, f"cannot be used: {brief(matcher.get_error())}")
    return matcher


def brief(error: object) -> str:
    """An error of the library in one line of bounded length."""
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."


def _grammar(kind: str, content: Any) -> str:
    from llguidance import LLMatcher, regex_to_lark

    if kind == "json":
        return LLMatcher.grammar_from_json_schema(_schema(content), overrides=JSON_OPTIONS)
    if kind == "regex":
        # with \d as the ten digits of JSON and JavaScript, and not those of every script
        return LLMatcher.grammar_from_lark(f"start: /{regex_to_lark(content, 'd')}/")
    if kind == "choice":
        return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(text) for text in content))
    if "::=" in content:
        raise ValueError("it is in GBNF; write it in Lark, where rules are `name: ...`")
    return LLMatcher.grammar_from_lark(content)


def _schema(content: Any) -> str:
    """The schema as text, without directions to the compiler of grammars."""
    try:
        schema = json.loads(content) if isinstance(content, str) else content
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema is an object")
    return json.dumps({key: value for key, value in schema.items() if key != "x-guidance"})
