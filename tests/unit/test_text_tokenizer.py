"""Tokenizers: what they are built from, what they refuse, BOS once, and ids of the default model."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_gguf import MERGES, byte_alphabet
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from narrows.checkpoints import open_checkpoint
from narrows.text import Tokenizer, TokenizerError, load_tokenizer
from narrows.text.pretokenizers import PRETOKENIZERS

CONTROL, USER, UNUSED, BYTE = 3, 4, 5, 6
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def byte_level(pre: str = "smollm", merges: list[str] | None = MERGES, **changes: Any) -> dict[str, Any]:
    """Metadata of a byte-level vocabulary with two user-defined tokens and one unused."""
    alphabet = byte_alphabet()
    tokens = [*SPECIALS, *alphabet, *(m.replace(" ", "") for m in merges or ()), "<tool>", "\n\n", "[PAD0]"]
    types = [CONTROL] * 3 + [1] * (len(tokens) - 6) + [USER, USER, UNUSED]
    values = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": np.array(types), "merges": merges}
    values |= {"bos_token_id": 1, "eos_token_id": 2, "add_bos_token": False} | changes
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def sentencepiece(**changes: Any) -> dict[str, Any]:
    """Metadata of a SentencePiece vocabulary: bytes, letters, a few words, runs of spaces."""
    words = ["▁", "h", "e", "l", "o", "w", "r", "d", "▁h", "el", "lo", "▁hel", "▁hello", "▁w", "or"]
    tokens = ["<unk>", "<s>", "</s>", "<turn>", "\n\n", "  ", "   ", *(f"<0x{b:02X}>" for b in range(256)), *words]
    types = [2, CONTROL, CONTROL, CONTROL, USER, USER, USER] + [BYTE] * 256 + [1] * len(words)
    scores = [0.0] * 263 + [-float(i) for i in range(len(words))]
    values = {"model": "llama", "tokens": tokens, "token_type": np.array(types), "scores": np.array(scores)}
    values |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0} | changes
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def load(metadata: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(SimpleNamespace(kind="gguf", metadata=metadata, path="m.gguf", identity=lambda: "id"))  # type: ignore[arg-type]


def pieces(tokenizer: Tokenizer, text: str, **how: Any) -> list[str]:
    return [tokenizer.token_text(i) for i in tokenizer.encode(text, **how)]


def test_byte_level_merges_and_splits_digits():
    assert pieces(load(byte_level()), " the in12") == ["Ġthe", "Ġ", "in", "1", "2"]


def test_pre_decides_how_text_is_cut():
    merges = ["1 2", "12 3", "Ã ©"]
    assert pieces(load(byte_level("gpt-2", merges)), "1234") == ["123", "4"]
    assert pieces(load(byte_level("qwen2", merges)), "1234") == list("1234")
    assert pieces(load(byte_level("llama-bpe", merges)), "12312") == ["123", "12"]
    assert pieces(load(byte_level("qwen2", merges)), "e\u0301") == ["Ã©"], "qwen2 normalises to NFC"
    assert len(pieces(load(byte_level("gpt-2", merges)), "e\u0301")) == 3


@pytest.mark.parametrize("pre", sorted(PRETOKENIZERS))
def test_every_pre_keeps_the_text(pre: str):
    tokenizer = load(byte_level(pre))
    text = "It's  3 tests,\n\nщи 世界 👩‍👩‍👧 a\u0301\t\r\n ١٢٣   end "
    expected = text.replace("a\u0301", "á") if PRETOKENIZERS[pre].nfc else text
    assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == expected


@given(st.text(max_size=60))
@settings(max_examples=200, deadline=None)
def test_byte_level_round_trip(text: str):
    assert TINY.decode(TINY.encode(text, add_special=False)) == text


TINY = load(byte_level())


def test_special_markers_are_tokens_only_when_parsed():
    assert pieces(TINY, "<|im_end|>") == ["<|im_end|>"]
    plain = TINY.encode("<|im_end|>", parse_special=False)
    assert 2 not in plain and TINY.decode(plain) == "<|im_end|>"
    assert pieces(TINY, "<tool>\n\n", parse_special=False) == ["<tool>", "\n\n"], "user-defined tokens are vocabulary"
    assert "[PAD0]" not in pieces(TINY, "[PAD0]"), "unused tokens are not found in text"


def test_parse_special_does_not_leak_between_threads():
    wrong = []

    def work(parse: bool) -> None:
        for _ in range(300):
            if (TINY.encode("<|im_end|>", parse_special=parse) == [2]) != parse:
                wrong.append(parse)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong


def test_bos_is_put_once():
    tokenizer = load(byte_level(add_bos_token=True))
    assert tokenizer.encode("a")[:2] == [1, *tokenizer.encode("a", add_special=False)]
    assert tokenizer.encode("<|im_start|>a") == tokenizer.encode("a")
    assert tokenizer.encode("a", add_special=False)[0] != 1
    assert tokenizer.encode("<|im_start|>a", parse_special=False)[0] == 1
    assert tokenizer.encode("<|im_start|>a", parse_special=False)[1] != 1
    assert tokenizer.encode("") == [1]
    assert TINY.encode("a")[0] != 1


def test_eos_is_appended_where_the_file_says_so():
    assert load(byte_level(add_eos_token=True)).encode("a")[-1] == 2


def test_a_llama3_vocabulary_wants_bos_even_if_the_file_is_silent():
    assert load(byte_level("llama-bpe", add_bos_token=None)).encode("a")[0] == 1
    assert load(byte_level("gpt-2", add_bos_token=None)).encode("a")[0] != 1


def test_ends_of_generation():
    assert TINY.eos_ids == {0, 2}, "declared, and <|endoftext|> by name"
    assert load(byte_level(eot_token_id=1)).eos_ids == {0, 1, 2}
    assert (TINY.bos_id, TINY.eos_id) == (1, 2)


def test_ids_without_text():
    last = TINY.vocab_size - 1
    assert TINY.token_bytes(last) == b""
    for wrong in (-1, TINY.vocab_size):
        with pytest.raises(TokenizerError, match=f"token id {wrong} is outside"):
            TINY.decode([wrong])


def test_skip_special_drops_control_tokens_only():
    ids = TINY.encode("<|im_start|>a<tool>")
    assert TINY.decode(ids) == "<|im_start|>a<tool>"
    assert TINY.decode(ids, skip_special=True) == "a<tool>"


def test_invalid_unicode_is_an_error_that_says_where():
    with pytest.raises(TokenizerError, match="lone surrogate at character 2"):
        TINY.encode("ab\ud800")
    with pytest.raises(TokenizerError, match="must be a str"):
        TINY.encode(b"ab")  # type: ignore[arg-type]
    assert TINY.encode("ab"), "and the tokenizer still works"


def test_sentencepiece_merges_by_score():
    tokenizer = load(sentencepiece(add_space_prefix=False))
    assert pieces(tokenizer, "helo hello", add_special=False) == ["h", "el", "o", "▁hello"]
    assert pieces(tokenizer, "h    h", add_special=False) == ["h", "  ", "  ", "h"]
    assert pieces(tokenizer, "\n\nh é", add_special=False) == ["\n\n", "h", "▁", "<0xC3>", "<0xA9>"]


@given(st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), max_size=40), st.booleans())
@settings(max_examples=150, deadline=None)
def test_sentencepiece_round_trip(text: str, prefix: bool):
    tokenizer = PREFIXED if prefix else UNPREFIXED
    ids = tokenizer.encode(text, parse_special=False)
    assert ids[0] == 1
    assert tokenizer.decode(ids, skip_special=True) == text


PREFIXED, UNPREFIXED = load(sentencepiece()), load(sentencepiece(add_space_prefix=False))


def test_space_prefix_belongs_to_the_start_of_a_text_only():
    hello = PREFIXED.encode("hello")
    assert [PREFIXED.token_text(i) for i in hello] == ["<s>", "▁hello"]
    assert PREFIXED.decode(hello[1:]) == " hello", "a continuation keeps its space"


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({}, "tokenizer.ggml.model is None"),
        (byte_level(model="bert"), "'bert'"),
        (byte_level("no-such-pre"), "tokenizer.ggml.pre is 'no-such-pre'.*known: .*smollm"),
        (byte_level(pre=None), "tokenizer.ggml.pre is None"),
        (byte_level(tokens=[]), "tokens must be a list"),
        (byte_level(tokens=["a", "a"], token_type=None), "same token twice"),
        (byte_level(token_type=np.array([1])), "token_type must hold one integer"),
        (byte_level(merges=None), "merges must be"),
        (byte_level(merges=["a b c"], tokens=list("abc"), token_type=None), "'a b c', which is not two"),
        (byte_level(merges=["q zz"], tokens=list("abq"), token_type=None), "inconsistent.*zz"),
        (byte_level(bos_token_id=10**6), "bos_token_id is 1000000"),
        (byte_level(bos_token_id="x"), "bos_token_id is 'x'"),
        (byte_level(token_type=["a"] * len(byte_level()["tokenizer.ggml.tokens"])), "token_type must hold one integer"),
        (sentencepiece(scores=["a"] * 278), "scores must hold"),
        (sentencepiece(unknown_token_id=-1, token_type=None), "unknown_token_id is -1"),
        (sentencepiece(tokens=["a" * 300], scores=[0.0], token_type=None), "token 0 has 300 characters"),
        (sentencepiece(scores=np.zeros(3)), "scores must hold"),
        (sentencepiece(scores=None), "scores must hold"),
    ],
)
def test_refused_files_name_what_is_wrong(metadata: dict[str, Any], message: str):
    with pytest.raises(TokenizerError, match=message):
        load(metadata)


def write_directory(folder: Path, **config: Any) -> SimpleNamespace:
    """A Hugging Face directory with the vocabulary of `byte_level`, BOS from the post-processor."""
    tokens = byte_level()["tokenizer.ggml.tokens"][:-3]
    backend = Backend(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[tuple(m.split(" ")) for m in MERGES])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(t, special=True) for t in SPECIALS])
    backend.post_processor = processors.TemplateProcessing("<|im_start|> $A", None, [("<|im_start|>", 1)])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return SimpleNamespace(kind="safetensors", path=folder, metadata={"vocab_size": len(tokens) + 5, **config})


def test_hugging_face_directory(tmp_path: Path):
    checkpoint = write_directory(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    tokenizer = load_tokenizer(checkpoint)  # type: ignore[arg-type]
    assert tokenizer.encode(" the")[0] == 1 == tokenizer.bos_id
    assert tokenizer.encode("<|im_start|> the") == tokenizer.encode(" the")
    assert tokenizer.encode(" the", add_special=False) == TINY.encode(" the")
    assert tokenizer.eos_ids == {0, 2, 5}
    assert tokenizer.token_bytes(tokenizer.vocab_size - 1) == b"", "padding of the model's vocabulary"
    assert tokenizer.decode(tokenizer.encode("né 世"), skip_special=True) == "né 世"


def test_derived_merges_are_kept_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path))
    monkeypatch.setattr("narrows.text.merges.WORTH_KEEPING", 1)
    ids = load(sentencepiece()).encode("hello hello")
    (kept,) = (tmp_path / "tokenizers").iterdir()
    good = kept.read_bytes()
    monkeypatch.setattr("narrows.text.merges.derive_merges", None)  # so that only the cache can serve
    assert load(sentencepiece()).encode("hello hello") == ids
    monkeypatch.undo()
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path))
    monkeypatch.setattr("narrows.text.merges.WORTH_KEEPING", 1)
    for wrong in (b"", good[:-5], good[:-8] + b"\xff" * 8, b"junk" * 100):
        kept.write_bytes(wrong)
        assert load(sentencepiece()).encode("hello hello") == ids
        assert kept.read_bytes() == good, "a broken cache is replaced"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "BPE"}}', "\x00" * 100])
def test_broken_tokenizer_json(tmp_path: Path, content: str):
    checkpoint = write_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(checkpoint)  # type: ignore[arg-type]


def test_missing_tokenizer_json(tmp_path: Path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        load_tokenizer(SimpleNamespace(kind="safetensors", path=tmp_path, metadata={}))  # type: ignore[arg-type]


def test_default_model(smollm2_path: Path):
    tokenizer = load_tokenizer(open_checkpoint(smollm2_path))
    assert tokenizer.encode("Hello, world! 123") == [19556, 28, 905, 17, 216, 33, 34, 35]
    assert tokenizer.encode("<|im_start|>user\n") == [1, 4093, 198]
    assert tokenizer.eos_ids == {0, 2} and tokenizer.vocab_size == 49152
