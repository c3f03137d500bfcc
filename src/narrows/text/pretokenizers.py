"""How each byte-level vocabulary cuts text before merging: the known values of ``tokenizer.ggml.pre``."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_TAIL = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _TAIL
_CASED_WORD = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
)
_TEKKEN = _CASED_WORD + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _TAIL
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class Pre:
    """One way of preparing text for byte-level BPE."""

    splits: tuple[str, ...] = ()  # regexes applied one after the other; what they do not match stays a piece
    gpt2_regex: bool = False  # then GPT-2's own expression, built into the library
    digits: bool = False  # every digit is a piece of its own, before anything else
    nfc: bool = False  # text is brought to Unicode NFC first
    ignore_merges: bool = False  # a piece that is a token as it stands is not built from merges
    add_bos: bool = False  # when the file does not say

    def build(self) -> pre_tokenizers.PreTokenizer:
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps += [pre_tokenizers.Split(Regex(split), behavior="isolated") for split in self.splits]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_regex))
        return pre_tokenizers.Sequence(steps)


_PLAIN = Pre(gpt2_regex=True)
_DIGITS = Pre(gpt2_regex=True, digits=True)
_LLAMA = Pre((_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN = Pre((_QWEN2,), nfc=True)

PRETOKENIZERS: dict[str, Pre] = {
    "default": Pre(_DEFAULT),
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "olmo": _PLAIN,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "command-r": _DIGITS,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "llama-bpe": _LLAMA,
    "llama3": _LLAMA,
    "llama-v3": _LLAMA,
    "falcon3": _LLAMA,
    "smaug-bpe": _LLAMA,
    "tekken": Pre((_TEKKEN,), ignore_merges=True, add_bos=True),
}
