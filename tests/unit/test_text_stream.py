"""Streaming: deltas join to the full decode, and no part of a stop string gets out."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narrows.text import Detokenizer, StopStrings
from narrows.text.tokenizer import Tokenizer, Vocabulary


def bytes_tokenizer() -> Tokenizer:
    """Ids 0 to 255 are bytes, then multi-byte pieces cut inside characters, a special token and a space-led piece."""
    cut = ["<0xF0>", "▁wide", "é", "世", "<end>"]
    pieces = [*(f"<0x{b:02X}>" for b in range(256)), *cut]
    return Tokenizer(None, Vocabulary(pieces, False, frozenset([260]), frozenset([260]), bos=260, space_prefix=True))  # type: ignore[arg-type]


TOKENIZER = bytes_tokenizer()


def stream(ids: list[int], cuts: list[int], skip_special: bool) -> str:
    detokenizer = Detokenizer(TOKENIZER, skip_special)
    bounds = [0, *sorted(c for c in cuts if c < len(ids)), len(ids)]
    return "".join(detokenizer.push(ids[a:b]) for a, b in pairwise(bounds)) + detokenizer.finish()


@given(st.lists(st.integers(0, 260), max_size=40), st.lists(st.integers(0, 40)), st.booleans())
@settings(max_examples=400, deadline=None)
def test_deltas_join_to_the_full_decode(ids: list[int], cuts: list[int], skip_special: bool):
    assert stream(ids, cuts, skip_special) == TOKENIZER.decode(ids, skip_special)


@given(st.text(max_size=30), st.lists(st.integers(0, 120)))
@settings(deadline=None)
def test_valid_text_streams_without_replacements(text: str, cuts: list[int]):
    assert stream(list(text.encode()), cuts, False) == text


def test_a_character_over_two_pushes_is_held_until_whole():
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.push([0xF0, 0x9F]) == ""
    assert detokenizer.push([0x98, 0x80]) == "😀"
    assert detokenizer.finish() == ""


def test_a_cut_tail_is_flushed_once():
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.push([0x61, 0xF0, 0x9F]) == "a"
    assert (detokenizer.finish(), detokenizer.finish()) == ("\ufffd", "")


def test_invalid_bytes_do_not_stall_the_stream():
    detokenizer = Detokenizer(TOKENIZER)
    assert detokenizer.push([0xF0]) == ""
    assert detokenizer.push([0x61]) == "\ufffda"
    assert detokenizer.push([0xFF]) == "\ufffd"
    assert detokenizer.push([0x80] * 3) == "\ufffd" * 3


def test_special_tokens_and_the_space_after_bos():
    detokenizer = Detokenizer(TOKENIZER, skip_special=True)
    assert detokenizer.push([260]) + detokenizer.push([257, 257]) == "wide wide"
    assert Detokenizer(TOKENIZER).push([257]) == " wide"


def run_stops(stops: list[str], chunks: list[str]) -> tuple[str, str | None]:
    out, matcher, matched = "", StopStrings(stops), None
    for chunk in chunks:
        emitted, matched = matcher.push(chunk)
        out += emitted
    return out + matcher.finish(), matched


def expected_stop(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition, character by character: the first prefix of the text that ends with a stop."""
    for end in range(len(text) + 1):
        ending = [s for s in stops if text[:end].endswith(s)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    st.lists(st.text("abc", max_size=5), max_size=8),
)
@settings(max_examples=600, deadline=None)
def test_stops_do_not_depend_on_how_text_is_cut(stops: list[str], chunks: list[str]):
    assert run_stops(stops, chunks) == expected_stop(stops, "".join(chunks))


@given(st.text("ab", min_size=1, max_size=5), st.text("abc", max_size=30))
@settings(max_examples=400, deadline=None)
def test_only_what_may_become_a_stop_is_held(stop: str, text: str):
    matcher, out, seen = StopStrings([stop]), "", ""
    for character in text:
        emitted, matched = matcher.push(character)
        out, seen = out + emitted, seen + character
        if matched:
            assert out + stop == seen
            return
        held = seen[len(out) :]
        assert stop.startswith(held) and held != stop
        assert not any(seen.endswith(stop[:n]) for n in range(len(held) + 1, len(stop)))


def test_the_alphabet_is_not_leaked():
    matcher = StopStrings(["DEFGHIJ"])
    emitted = [matcher.push(piece) for piece in ("ABC", "DEF", "G", "HI", "JK", "L")]
    assert [text for text, _ in emitted] == ["ABC", "", "", "", "", ""]
    assert emitted[-1][1] == "DEFGHIJ" and matcher.finish() == ""


def test_text_that_did_not_become_a_stop_goes_out():
    matcher = StopStrings(["stop"])
    assert matcher.push("a st") == ("a ", None)
    assert matcher.push("ep") == ("step", None)
    assert matcher.push("sto") == ("", None)
    assert matcher.finish() == "sto"


@pytest.mark.parametrize("stops", [[""], ["x" * 2000], [5]])
def test_impossible_stops_are_refused(stops: list[str]):
    with pytest.raises(ValueError, match="stop must be strings"):
        StopStrings(stops)
