"""How tokens are chosen: the parameters, what they do to a row of logits, and the random numbers.

The order is fixed: penalties (repetition over prompt and output; presence and frequency over output), `logit_bias`,
masking of end and stop tokens until `min_tokens`, temperature, `top_k`, `top_p`, `min_p`, draw. Log-probabilities that
are reported are those of the raw logits, before any of it.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from . import _native
from .types import F32, F64, TokenLogprobs

GREEDY_BELOW = 1e-5  # a temperature that leaves nothing to chance
_SEED_LOW, _SEED_HIGH = -(1 << 63), (1 << 64) - 1


class ParamError(ValueError):
    """A sampling parameter that is not acceptable. `field` is its name, `message` the whole sentence."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field} {message}")
        self.field = field
        self.message = f"{field} {message}"


def _number(default: float, low: float, high: float, doc: str, open_low: bool = False) -> Any:
    def check(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise ParamError(name, f"must be a number, not {_brief(value)}")
        if not (low < value if open_low else low <= value) or not value <= high:  # NaN fails both
            raise ParamError(name, f"is {_brief(value)}; it must be {text}")
        return float(value)

    text = f"above {low:g} and at most {high:g}" if open_low else f"between {low:g} and {high:g}"
    return _field(default, "number", text, doc, check)


def _integer(default: int | None, low: int, high: int, doc: str, limits: str = "", optional: bool = False) -> Any:
    def check(name: str, value: Any) -> int | None:
        if value is None and (optional or default is None):
            return None
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise ParamError(name, f"must be an integer, not {_brief(value)}")
        if not low <= value <= high:
            raise ParamError(name, f"is {_brief(value)}; it must be {text}")
        return int(value)

    text = limits or f"between {low} and {high}"
    return _field(default, "integer", text, doc, check)


def _flag(default: bool, doc: str) -> Any:
    def check(name: str, value: Any) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise ParamError(name, f"must be true or false, not {_brief(value)}")
        return bool(value)

    return _field(default, "boolean", "true or false", doc, check)


def _check_stop(name: str, value: Any) -> tuple[str, ...]:
    texts = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
        raise ParamError(name, f"must be a string or a list of strings, not {_brief(value)}")
    if len(texts) > 64 or any(not 0 < len(t) <= 1024 for t in texts):
        raise ParamError(name, "must be at most 64 strings of 1 to 1024 characters")
    if not all(map(_is_unicode, texts)):
        raise ParamError(name, "holds half a surrogate pair, which is no character")
    return tuple(texts)


def _check_ids(name: str, value: Any) -> tuple[int, ...]:
    ids = () if value is None else value
    if not isinstance(ids, list | tuple):
        raise ParamError(name, f"must be a list of token ids, not {_brief(value)}")
    if len(ids) > 1024:
        raise ParamError(name, f"holds {len(ids)} ids; at most 1024 are allowed")
    for i in ids:
        _token_id(name, i)
    return tuple(int(i) for i in ids)


def _check_bias(name: str, value: Any) -> dict[int, float]:
    biases = {} if value is None else value
    if not isinstance(biases, dict):
        raise ParamError(name, f"must map token ids to numbers, not {_brief(value)}")
    if len(biases) > 4096:
        raise ParamError(name, f"holds {len(biases)} ids; at most 4096 are allowed")
    checked: dict[int, float] = {}
    for key, bias in biases.items():
        if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 11:  # JSON has no other keys
            key = int(key)
        _token_id(name, key)
        if isinstance(bias, bool) or not isinstance(bias, int | float | np.number) or not -100 <= bias <= 100:
            raise ParamError(name, f"of token {key} is {_brief(bias)}; it must be a number between -100 and 100")
        checked[int(key)] = float(bias)
    return checked


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


MAX_GRAMMAR_BYTES = 1 << 16


def _check_structured(name: str, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    given = {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else {}
    if len(given) != 1 or not given.keys() <= _STRUCTURES.keys():
        raise ParamError(name, f"must be an object with exactly one of {', '.join(_STRUCTURES)}, not {_brief(value)}")
    ((kind, content),) = given.items()
    wanted, fits = _STRUCTURES[kind]
    if not fits(content):
        raise ParamError(f"{name}.{kind}", f"must be {wanted}, not {_brief(content)}")
    try:
        size = len(json.dumps(content, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ParamError(f"{name}.{kind}", f"is not JSON: {str(error)[:80]}") from None
    if size > MAX_GRAMMAR_BYTES:
        raise ParamError(f"{name}.{kind}", f"has {size} bytes as JSON; at most {MAX_GRAMMAR_BYTES} are allowed")
    return {kind: content}


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and 0 < len(value) <= 1024 and all(map(_text, value))


_STRUCTURES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "json": ("a JSON schema, or its text", lambda value: isinstance(value, dict) or _text(value)),
    "regex": ("a regular expression", _text),
    "grammar": ("the text of a grammar", _text),
    "choice": ("a list of 1 to 1024 texts that are not empty", _texts),
}


def _token_id(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 1 << 31:
        raise ParamError(name, f"holds {_brief(value)}, which is not a token id")


def _brief(value: Any) -> str:
    if isinstance(value, int) and abs(value) > 1 << 64:
        return "a huge integer"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _field(default: Any, kind: str, limits: str, doc: str, check: Callable[[str, Any], Any]) -> Any:
    meta = {"kind": kind, "limits": limits, "doc": doc, "check": check}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=meta)
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request's tokens are chosen and when it ends. The fields are the table: types, ranges, documents.

    Raises ParamError, naming the field, for a value of the wrong type or out of range.
    """

    n: int = _integer(1, 1, 128, "Answers to produce; each has a seed of its own.")
    temperature: float = _number(1.0, 0, 100, "Divides the logits; 0 always takes the likeliest token.")
    top_k: int = _integer(0, -1, 1 << 31, "Keep the k likeliest tokens; 0 or -1 keeps all.", "-1 or more")
    top_p: float = _number(1.0, 0, 1, "Keep the likeliest tokens that sum to p.", open_low=True)
    min_p: float = _number(0.0, 0, 1, "Drop tokens less likely than this share of the likeliest.")
    repetition_penalty: float = _number(
        1.0, 0, 100, "Divides positive logits of tokens in prompt or output, multiplies negative ones.", open_low=True
    )
    presence_penalty: float = _number(0.0, -2, 2, "Subtracted from the logits of tokens in the output.")
    frequency_penalty: float = _number(0.0, -2, 2, "Subtracted once for every time a token is in the output.")
    logit_bias: dict[int, float] = _field(  # noqa: RUF009 a field descriptor, as the others
        {}, "object", "ids of the vocabulary, -100 to 100", "Added to the logits of tokens, by id.", _check_bias
    )
    seed: int | None = _integer(
        None, _SEED_LOW, _SEED_HIGH, "The same seed gives the same answer; none draws one.", "64 bits"
    )
    stop: str | Sequence[str] | None = _field(
        (), "string or list", "64 strings of 1 to 1024 characters", "End before any of these texts.", _check_stop
    )
    stop_token_ids: Sequence[int] | None = _field((), "list", "1024 ids", "End with any of these tokens.", _check_ids)
    max_tokens: int | None = _integer(
        16, 1, 1 << 31, "Tokens to produce at most; null: until the context is full.", "1 or more", optional=True
    )
    min_tokens: int = _integer(0, 0, 1 << 31, "No end, for whatever reason but the limits, before.", "0 or more")
    ignore_eos: bool = _flag(False, "Go on after the model's end token.")
    structured_outputs: dict[str, Any] | None = _field(  # noqa: RUF009 a field descriptor, as the others
        None, "object", "one of json, regex, grammar, choice", "Keep the answer to this form.", _check_structured
    )
    logprobs: int | None = _integer(None, 0, 20, "Report each token's log-probability, and those of the k likeliest.")
    prompt_logprobs: int | None = _integer(None, 0, 20, "The same for the prompt's tokens, from the second.")
    skip_reading_prefix_cache: bool = _flag(False, "Read the whole prompt, though its beginning is in the cache.")
    skip_special_tokens: bool = _flag(True, "Leave special tokens out of the text.")
    detokenize: bool = _flag(True, "Produce text; false gives token ids only, and no stop strings.")
    include_stop_str_in_output: bool = _flag(False, "Keep the stop text at the end of the answer.")

    def __post_init__(self) -> None:
        for f in fields(self):
            object.__setattr__(self, f.name, f.metadata["check"](f.name, getattr(self, f.name)))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ParamError("min_tokens", f"is {self.min_tokens}; it must be at most max_tokens ({self.max_tokens})")
        if self.stop and not self.detokenize:
            raise ParamError("stop", "needs text: leave detokenize on, or use stop_token_ids")

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises ParamError when an id is not in the vocabulary."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids or ())):
            for i in ids:
                if i >= vocab_size:
                    raise ParamError(name, f"holds token {i}, but the vocabulary ends at {vocab_size - 1}")


def table() -> tuple[Field[Any], ...]:
    """The fields of SamplingParams; `metadata` holds kind, limits, doc and check."""
    return fields(SamplingParams)


def markdown_table() -> str:
    """The parameters as a table for the documents."""
    rows = ["| parameter | type | range | default | meaning |", "|---|---|---|---|---|"]
    for f in table():
        default = f.default if f.default is not MISSING else {}
        shown = "none" if default in (None, (), {}) else str(default).lower()
        meta = f.metadata
        rows.append(f"| `{f.name}` | {meta['kind']} | {meta['limits']} | {shown} | {meta['doc']} |")
    return "\n".join(rows)


def fresh_seed() -> int:
    """A seed nobody asked for."""
    return int.from_bytes(os.urandom(8), "little")


def child_seed(seed: int, index: int) -> int:
    """The seed of answer `index` of n; the first has the request's own."""
    return seed & _MASK if index == 0 else _mix(_mix(seed & _MASK) ^ index)


_MASK = (1 << 64) - 1


def _mix(x: int) -> int:  # the finaliser of splitmix64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True, slots=True)
class CounterRng:
    """Random numbers keyed by (seed, position): nothing to carry along, nothing to keep in step."""

    seed: int
    position: int  # of offset 0

    def uniform(self, offset: int, stream: int = 0) -> float:
        """In [0, 1). Streams are independent: 0 chooses tokens, the others serve speculation."""
        key = _mix((self.seed & _MASK) + (2 * stream + 1) * 0x9E3779B97F4A7C15 & _MASK)
        return (_mix((key + (self.position + offset) * 0x9E3779B97F4A7C15) & _MASK) >> 11) * 2.0**-53


class _Rng(Protocol):
    def uniform(self, offset: int, stream: int = 0) -> float: ...


def choose(logits: F32, params: SamplingParams, rng: _Rng, offset: int) -> int:
    """One token from adjusted logits [1, V]."""
    if params.greedy:
        return int(_native.argmax(logits)[0])
    p = params
    return _native.sample(logits[0], p.temperature, max(p.top_k, 0), p.top_p, p.min_p, rng.uniform(offset))


def distribution(logits: F32, params: SamplingParams) -> F64:
    """What `choose` draws from, for one row of adjusted logits [V]: probabilities [V]."""
    out = np.zeros(len(logits))
    if params.greedy or params.top_k == 1 or not np.isfinite(logits.max()):
        out[_native.argmax(logits[None])[0]] = 1
        return out
    weights = np.exp((logits.astype(np.float64) - logits.max()) / params.temperature)
    if params.top_k > 0 or params.top_p < 1:
        order = np.argsort(-logits, kind="stable")
        sums = np.cumsum(weights[order])
        count = min(params.top_k, len(order)) if params.top_k > 0 else len(order)
        if params.top_p < 1:
            count = min(count, int(np.searchsorted(sums, params.top_p * sums[count - 1])) + 1)
        weights[order[count:]] = 0
    weights[weights < params.min_p] = 0  # the likeliest weighs 1
    return weights / weights.sum()


def draw(probs: F64, uniform: float) -> int:
    """The token at `uniform` of the cumulated probabilities [V], which need not sum to one."""
    sums = np.cumsum(probs)
    return int(np.searchsorted(sums, min(uniform * sums[-1], np.nextafter(sums[-1], 0)), side="right"))


def adjusts(params: SamplingParams, num_output: int) -> bool:
    """Whether `adjust` would change anything."""
    p = params
    penalised = p.repetition_penalty != 1 or p.presence_penalty != 0 or p.frequency_penalty != 0
    return penalised or bool(p.logit_bias) or num_output < p.min_tokens


def adjust(
    logits: F32,
    tokens: Sequence[int] | npt.NDArray[np.int64],
    num_prompt: int,
    params: SamplingParams,
    end_ids: Collection[int],
) -> F32:
    """Penalties, biases and the mask of end tokens: a changed copy of logits [k+1, V].

    `tokens` are those of the request followed by k drafted ones; row i follows all but the last k - i of them.
    """
    out = logits.copy()
    p = params
    known = np.asarray(tokens, np.int64)
    for i, row in enumerate(out):
        seen = known[: len(known) - (len(out) - 1 - i)]
        if p.repetition_penalty != 1:
            ids = np.unique(seen)
            row[ids] = np.where(row[ids] > 0, row[ids] / p.repetition_penalty, row[ids] * p.repetition_penalty)
        if p.presence_penalty or p.frequency_penalty:
            ids, counts = np.unique(seen[num_prompt:], return_counts=True)
            row[ids] -= (p.presence_penalty + p.frequency_penalty * counts).astype(np.float32)
        for token, bias in p.logit_bias.items():
            row[token] += bias
        if len(seen) - num_prompt < p.min_tokens:
            row[list(end_ids)] = -math.inf
    return out


def adjust_paths(
    logits: F32,
    tokens: Sequence[int],
    paths: Sequence[Sequence[int]],
    num_prompt: int,
    params: SamplingParams,
    end_ids: Collection[int],
) -> F32:
    """The same for rows of a tree: row i follows the request's tokens and then paths[i]."""
    known = np.asarray(tokens, np.int64)
    seen = [np.concatenate([known, np.asarray(path, np.int64)]) for path in paths]
    rows = [adjust(logits[i : i + 1], one, num_prompt, params, end_ids) for i, one in enumerate(seen)]
    return np.concatenate(rows)


def token_logprobs(logits: F32, tokens: Sequence[int], k: int) -> list[TokenLogprobs]:
    """Log-probability and rank of tokens [m] under raw logits [m, V], and those of the k likeliest."""
    norm = _native.log_sum_exp(logits)
    ids, values = _native.top_k(logits, k) if k else (np.empty((len(logits), 0)),) * 2
    chosen = logits[np.arange(len(tokens)), tokens]
    ranks = (logits > chosen[:, None]).sum(axis=1) + 1
    return [
        TokenLogprobs(
            token=int(token),
            logprob=float(chosen[i] - norm[i]),
            rank=int(ranks[i]),
            top=[(int(t), float(v - norm[i])) for t, v in zip(ids[i], values[i], strict=True)],
        )
        for i, token in enumerate(tokens)
    ]
