"""Opens the tokenizer of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from narrows.text import gguf_vocab as gv
from narrows.text.errors import TokenizerError
from narrows.text.pretokenizers import PRETOKENIZERS
from narrows.text.tokenizer import Tokenizer, Vocabulary, end_ids

if TYPE_CHECKING:
    from narrows.checkpoints import Checkpoint

MAX_JSON_BYTES = 256 << 20


def load_tokenizer(ckpt: Checkpoint) -> Tokenizer:
    """The tokenizer of a GGUF file or Hugging Face directory; raises TokenizerError naming what is missing."""
    if ckpt.kind == "gguf":
        return _from_gguf(ckpt.metadata, ckpt.identity())
    return _from_directory(Path(ckpt.path), ckpt.metadata)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a checkpoint, {} when there is no such file; raises TokenizerError."""
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_JSON_BYTES:
        raise TokenizerError(f"{path.name} is larger than {MAX_JSON_BYTES >> 20} MB")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path.name} must hold a JSON object")
    return value


def marker_text(value: Any) -> str | None:
    """The text of a special token in tokenizer_config.json, where it is a string or an object with ``content``."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _from_gguf(metadata: dict[str, Any], identity: str) -> Tokenizer:
    backend = gv.build_gguf(metadata, identity)
    tokens = gv.tokens_of(metadata)
    types = gv.types_of(metadata, len(tokens))

    bos, eos, eot, eom = (gv.token_id(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom"))
    byte_level = metadata[gv.KEY + "model"] == "gpt2"
    wants_bos = PRETOKENIZERS[metadata[gv.KEY + "pre"]].add_bos if byte_level else True
    prefix = (bos,) if bos is not None and metadata.get(gv.KEY + "add_bos_token", wants_bos) else ()
    suffix = (eos,) if eos is not None and metadata.get(gv.KEY + "add_eos_token", False) else ()
    special = frozenset(i for i, kind in enumerate(types) if kind in (gv.CONTROL, gv.UNKNOWN))
    literal = special | {i for i, kind in enumerate(types) if kind == gv.USER_DEFINED}
    pieces = [None if kind == gv.UNUSED else token for token, kind in zip(tokens, types, strict=True)]
    vocabulary = Vocabulary(
        pieces=pieces,
        byte_level=byte_level,
        special=special,
        literal=literal,
        bos=bos,
        eos=eos,
        ends=end_ids(pieces, special, (eos, eot, eom)),
        prefix=prefix,
        suffix=suffix,
        space_prefix=not byte_level and bool(metadata.get(gv.KEY + "add_space_prefix", True)),
    )
    return Tokenizer(backend, vocabulary)


def _from_directory(folder: Path, config: dict[str, Any]) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise TokenizerError(f"no tokenizer.json in {folder}; convert the tokenizer to the `tokenizers` format")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise TokenizerError(f"tokenizer.json is larger than {MAX_JSON_BYTES >> 20} MB")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:  # a panic in the library is not an Exception
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
        raise TokenizerError(f"tokenizer.json cannot be read: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    byte_level, space_prefix = _decoder_kind(backend)
    added = backend.get_added_tokens_decoder()
    size = max([backend.get_vocab_size(), *(i + 1 for i in added if i < 1 << 24)])
    pieces = [backend.id_to_token(i) for i in range(size)]
    special = frozenset(i for i, token in added.items() if token.special and i < size)
    settings = read_json(folder / "tokenizer_config.json")
    generation = read_json(folder / "generation_config.json")
    config = config.get("text_config", config)

    def token_id(name: str) -> int | None:
        text = marker_text(settings.get(f"{name}_token"))
        found = backend.token_to_id(text) if text else None
        return found if found is not None else _first_int(config.get(f"{name}_token_id"))

    bos, eos = token_id("bos"), token_id("eos")
    ends: list[Any] = [eos]
    for value in (config.get("eos_token_id"), generation.get("eos_token_id")):
        ends += value if isinstance(value, list) else [value]
    prefix, suffix = _surroundings(backend)
    vocabulary = Vocabulary(
        pieces=pieces,
        byte_level=byte_level,
        special=special,
        literal=frozenset(i for i in added if i < size),
        bos=bos,
        eos=eos,
        ends=end_ids(pieces, special, ends),
        prefix=prefix,
        suffix=suffix,
        space_prefix=space_prefix,
        num_tokens=min(_first_int(config.get("vocab_size")) or 0, 1 << 24),
    )
    return Tokenizer(backend, vocabulary)


def _first_int(value: Any) -> int | None:
    value = value[0] if isinstance(value, list) and value else value
    return value if isinstance(value, int) else None


def _decoder_kind(backend: tokenizers.Tokenizer) -> tuple[bool, bool]:
    """(byte-level, adds a space in front) from the decoder of a tokenizer.json."""
    state = json.loads(backend.decoder.__getstate__()) if backend.decoder else {}
    steps = state.get("decoders", [state])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return True, False
    if not kinds & {"Replace", "Metaspace", "ByteFallback"}:
        raise TokenizerError(
            f"tokenizer.json has decoder {state.get('type')!r}; supported: ByteLevel and SentencePiece"
        )
    metaspace = next((step for step in steps if step.get("type") == "Metaspace"), None)
    return False, "Strip" in kinds or (metaspace is not None and metaspace.get("prepend_scheme") != "never")


def _surroundings(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids a tokenizer.json puts before and after a text."""
    plain, full = backend.encode("a", add_special_tokens=False).ids, backend.encode("a").ids
    start = next((i for i in range(len(full) - len(plain) + 1) if full[i : i + len(plain)] == plain), 0)
    return tuple(full[:start]), tuple(full[start + len(plain) :])
