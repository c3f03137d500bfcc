"""Masks of the vocabulary, without a model: random tokens under a mask spell what the grammar describes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_schemas import SCHEMAS, fits

from narrows.checkpoints import open_checkpoint
from narrows.constrain.guidance import Guidance, GuidedMatcher
from narrows.sampling import CounterRng, ParamError, SamplingParams
from narrows.text import Tokenizer, load_tokenizer
from narrows.types import Draft
from narrows.verifiers.greedy import Greedy

MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
Walk = Callable[..., str]


@pytest.fixture(scope="module")
def tokenizer(tiny_path: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(tiny_path))


@pytest.fixture(scope="module")
def guidance(tokenizer: Tokenizer) -> Guidance:
    return Guidance(tokenizer, tokenizer.vocab_size + 5)


@pytest.fixture(scope="module")
def walk(guidance: Guidance, tokenizer: Tokenizer) -> Walk:
    """The text of a random walk through a grammar, "" of one that has not ended after 2,000 tokens."""

    def run(outputs: dict[str, Any], seed: int, towards: str = "") -> str:
        matcher, chance, tokens = guidance.matcher(outputs), np.random.default_rng(seed), []
        liked = list(towards.encode())
        for _ in range(2000):
            logits = chance.standard_normal((1, tokenizer.vocab_size + 5)).astype(np.float32)
            for byte in liked:
                logits[0, tokenizer.encode(chr(byte))] = 20
            token = int(matcher.mask(logits, [[]])[0].argmax())
            assert token < tokenizer.vocab_size
            assert token not in tokenizer.special_ids or token in tokenizer.eos_ids
            tokens.append(token)
            if reason := matcher.accept(token):
                assert reason == "stop"
                return tokenizer.decode(tokens, skip_special=True)
        return ""

    return run


@given(schema=SCHEMAS, seed=st.integers(0, 1 << 30))
@MANY
def test_whatever_is_drawn_fits_the_schema(walk: Walk, schema: dict[str, Any], seed: int) -> None:
    text = walk({"json": schema}, seed)
    assert fits(json.loads(text), schema), text


@pytest.mark.parametrize("outputs", [{"json": {"type": "object"}}, {"json": '{"type": "array", "maxItems": 3}'}])
def test_a_model_that_likes_blanks_ends_all_the_same(walk: Walk, outputs: dict[str, Any]) -> None:
    text = walk(outputs, 0, towards=" \n}]")
    json.loads(text)
    assert not re.search(r"\s{34}", text)


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), min_size=1, max_size=5), st.integers(0))
@MANY
def test_a_choice_is_one_of_the_texts(walk: Walk, texts: list[str], seed: int) -> None:
    assert walk({"choice": texts}, seed) in texts


@pytest.mark.parametrize(
    "pattern",
    [r"\d{3}-\d{2}", r"^(yes|no)$", r"[a-z]{2}/[^/]{1,3}", r"a\/b", "é{2}", "(a|ab)(c|bc)", "x", r"<\|im_end\|>"],
)
def test_an_answer_matches_the_whole_pattern(walk: Walk, pattern: str) -> None:
    for seed in range(5):
        assert re.fullmatch(pattern, walk({"regex": pattern}, seed), re.ASCII if "d" in pattern else 0)


def test_a_grammar(walk: Walk) -> None:
    grammar = 'start: sum\nsum: NUMBER ("+" NUMBER){1,3}\nNUMBER: /[0-9]{1,2}/'
    assert re.fullmatch(r"\d{1,2}(\+\d{1,2}){1,3}", walk({"grammar": grammar}, 3))


def chain(drafted: np.ndarray) -> list[list[int]]:
    return [[], *Draft(drafted).paths()]


def draws(matcher: GuidedMatcher, tokenizer: Tokenizer, draft: int) -> list[int]:
    """Tokens chosen from random logits keyed by position, with drafts of a length that are right now and then."""
    chance = np.random.default_rng(5)
    table = chance.standard_normal((400, tokenizer.vocab_size + 5)).astype(np.float32)
    guesses = np.random.default_rng(6)
    params, tokens = SamplingParams(temperature=0), list[int]()
    while len(tokens) < 300:
        drafted = guesses.integers(0, tokenizer.vocab_size, draft).astype(np.int32)
        rows = table[len(tokens) : len(tokens) + draft + 1]
        for i in range(draft):  # right as far as a coin says
            if guesses.random() < 0.8:
                drafted[i] = matcher.mask(rows[: i + 1], chain(drafted[:i]))[i].argmax()
        logits = matcher.mask(rows, chain(drafted))
        verdict = Greedy().verify(logits, Draft(drafted) if draft else None, params, CounterRng(0, 0))
        for token in verdict.tokens:
            tokens.append(token)
            if matcher.accept(token):
                return tokens
    return tokens[:300]


@pytest.mark.parametrize("draft", [1, 2, 5])
@pytest.mark.parametrize("outputs", [{"json": {"type": "object"}}, {"regex": "(ab|c){3,9}"}, {"choice": ["abc", "ab"]}])
def test_drafts_change_nothing(guidance: Guidance, tokenizer: Tokenizer, outputs: dict[str, Any], draft: int) -> None:
    plain = draws(guidance.matcher(outputs), tokenizer, 0)
    assert draws(guidance.matcher(outputs), tokenizer, draft) == plain


def test_a_tree_of_drafts_is_masked_by_its_paths(guidance: Guidance, tokenizer: Tokenizer) -> None:
    """Rows of a tree get the mask that their path would get as a chain; those behind a forbidden token stay open."""
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    tree = [[], [a], [b], [a, b], [b, c], [b, a], [c, c], [a, b, a]]
    logits = np.random.default_rng(0).standard_normal((len(tree), tokenizer.vocab_size + 5)).astype(np.float32)
    matcher = guidance.matcher({"regex": "(ab|ba)+"})
    for _ in range(2):  # nothing is left behind
        masked = matcher.mask(logits, tree)
        for i, path in enumerate(tree):
            alone = matcher.mask(logits[np.full(len(path) + 1, i)], [path[:n] for n in range(len(path) + 1)])
            np.testing.assert_array_equal(masked[i], alone[-1])
        assert (masked[[4, 6]] == logits[[4, 6]]).all()


def test_each_request_has_a_place_of_its_own(guidance: Guidance, tokenizer: Tokenizer) -> None:
    one, other = guidance.matcher({"choice": ["ab"]}), guidance.matcher({"choice": ["ab"]})
    a, b = tokenizer.encode("a") + tokenizer.encode("b")
    logits = np.zeros((1, tokenizer.vocab_size + 5), np.float32)
    assert one.accept(a) is None
    assert one.mask(logits, [[]])[0].argmax() == b
    assert other.mask(logits, [[]])[0].argmax() == a
    assert one.accept(b) == "stop"
    assert not logits.any()


def test_where_nothing_is_left_the_grammar_wins(guidance: Guidance, tokenizer: Tokenizer) -> None:
    logits = np.full((1, tokenizer.vocab_size + 5), -np.inf, np.float32)
    assert guidance.matcher({"choice": ["b"]}).mask(logits, [[]])[0].argmax() == tokenizer.encode("b")[0]


def test_a_token_that_the_grammar_forbids_ends_the_answer(guidance: Guidance, tokenizer: Tokenizer) -> None:
    assert guidance.matcher({"choice": ["b"]}).accept(tokenizer.encode("a")[0]) == "abort"


def test_a_grammar_that_grows_too_wide_on_the_way_ends_the_answer(guidance: Guidance, tokenizer: Tokenizer) -> None:
    members = [{"type": "object", "properties": {f"p{i}": {"type": "integer"}}} for i in range(1000)]
    matcher = guidance.matcher({"json": {"anyOf": members}})
    logits = np.zeros((1, tokenizer.vocab_size + 5), np.float32)
    reasons = [matcher.accept(int(matcher.mask(logits, [[]])[0].argmax())) for _ in range(2)]
    assert reasons == ["abort", "abort"]


NESTED = {f"a{i}": {"allOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(25)}
TOO_MUCH = {"$defs": {**NESTED, "a25": {"type": "string", "pattern": ".*a"}}, "$ref": "#/$defs/a0"}
LEVELS = "".join(f"A{i}: {f'A{i + 1} ' * 10}\n" for i in range(4))


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("json", {"type": "strin"}, "Invalid type: strin"),
        ("json", "{", "cannot be used: "),
        ("json", "[1]", "a JSON schema is an object"),
        ("json", "[" * 30000, "cannot be used: it is nested too deeply"),
        ("json", {"$ref": "http://example.com/schema"}, "not present in a registry"),
        ("json", {"uniqueItems": True}, 'Unimplemented keys: \\["uniqueItems"\\]'),
        ("json", TOO_MUCH, "too much work"),
        ("regex", "*", "repetition operator missing expression"),
        ("regex", "(" * 60000 + ")" * 60000, "at most 65536"),
        ("regex", "(" * 30000 + ")" * 30000, "cannot be used"),
        ("regex", "(?=a)b", "look-around"),
        ("regex", ".*" * 30000, "too much work"),
        ("grammar", 'root ::= "a"', "is in GBNF"),
        ("grammar", "start: <|im_end|>", "unknown special token"),
        ("grammar", f"start: A0\n{LEVELS}A4: /.*/", "too much work"),
        ("grammar", "start: start", "cannot be used"),
    ],
)
def test_what_cannot_be_used_is_refused_in_time(guidance: Guidance, kind: str, content: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message) as error:
        guidance.matcher(SamplingParams(structured_outputs={kind: content}).structured_outputs or {})
    assert error.value.field == f"structured_outputs.{kind}"
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "exactly one of json, regex, grammar, choice"),
        ({"json": {}, "regex": "a"}, "one of"),
        ({"json_object": True}, "one of"),
        ({"json": True}, r"structured_outputs.json must be a JSON schema"),
        ({"json": {"enum": [float("nan")]}}, r"structured_outputs.json is not JSON"),
        ({"json": {"a": {1, 2}}}, "is not JSON"),
        ({"regex": ""}, "structured_outputs.regex must be"),
        ({"grammar": 5}, "structured_outputs.grammar must be"),
        ({"choice": []}, "structured_outputs.choice must be"),
        ({"choice": ["a", ""]}, "must be a list of 1 to 1024 texts"),
        ({"choice": ["x" * 70000]}, "at most 65536"),
    ],
)
def test_malformed_fields_are_named(value: Any, message: str) -> None:
    with pytest.raises(ParamError, match=message):
        SamplingParams(structured_outputs=value)


def test_null_members_are_absent_ones() -> None:
    params = SamplingParams(structured_outputs={"json": None, "regex": "a", "choice": None})
    assert params.structured_outputs == {"regex": "a"}
    assert SamplingParams(structured_outputs=None).structured_outputs is None


def test_without_the_library_it_says_what_to_install(guidance: Guidance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ParamError, match=r"pip install 'narrows\[structured\]'"):
        Guidance(guidance._tokenizer, 10).matcher({"regex": "a"})


def test_loading_an_engine_does_not_import_the_library() -> None:
    code = "import sys, narrows.loader; sys.exit('llguidance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
