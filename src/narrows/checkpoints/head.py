"""Trained heads on disk: a folder with `head.json` and one decoder layer, stored as compressed models are.

The vocabulary is a bit for each of the target's tokens, the lowest bit first. Embeddings and the rows of the output
matrix are the target's, which is recognised by its sha256.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import F32, I32, ModelSpec
from .base import CheckpointError, read_object
from .compressed import Compressed, open_compressed, sha256

INFO, KIND = "head.json", "narrows-head"
FUSE, VOCABULARY = "fuse", "vocabulary"
SCALE = (
    "scale"  # [3H], what states are multiplied with: some values of a stream are thousands of times as large as others
)
NORMS = ("embed_norm", "layers.0.attn_norm", "layers.0.ffn_norm", "norm")  # [H]
NUM_LAYERS = 3  # of the target, whose states are fused
AUTO = "auto"


def shapes(spec: ModelSpec) -> dict[str, tuple[int, int]]:
    """The matrices of a head for a target, by name, [out, in]."""
    hidden, ffn, query, key = (
        spec.hidden_size,
        spec.ffn_size,
        spec.num_heads * spec.head_dim,
        spec.num_kv_heads * spec.head_dim,
    )
    layer = {"q": (query, 2 * hidden), "k": (key, 2 * hidden), "v": (key, 2 * hidden), "o": (hidden, query)}
    layer |= {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
    return {FUSE: (hidden, NUM_LAYERS * hidden)} | {f"layers.0.{part}": shape for part, shape in layer.items()}


@dataclass(frozen=True)
class TrainedHead:
    """An open head that fits its target."""

    path: Path
    spec: ModelSpec  # the target's, but for the width of the feed-forward part
    matrices: Compressed
    layers: tuple[int, ...]  # of the target: the states before these are fused
    norms: dict[str, F32]
    scale: F32
    ids: I32  # [V] the tokens it may draft, in order
    info: dict[str, Any]


def open_head(path: Path, spec: ModelSpec) -> TrainedHead:
    """Opens a head for a target of this shape. Raises CheckpointError, naming the file and the field."""
    folder = open_compressed(path, INFO, KIND, "train the head")

    def error(problem: str) -> CheckpointError:
        return CheckpointError(f"{path / INFO}: {problem}; train the head again")

    layers = folder.info.get("layers")
    if (
        not isinstance(layers, list)
        or len(layers) != NUM_LAYERS
        or not all(type(i) is int and 0 <= i <= spec.num_layers for i in layers)
    ):
        raise error(f"layers is {layers!r:.40}, not {NUM_LAYERS} layers of a model of {spec.num_layers}")
    spec = replace(spec, ffn_size=folder.shapes.get("layers.0.gate", (0,))[0])
    if not spec.ffn_size or folder.shapes != shapes(spec):
        raise error("its matrices have not the shapes that the model's sizes ask for")
    norms = {name: folder.vector(name, spec.hidden_size) for name in NORMS}
    scale = folder.vector(SCALE, NUM_LAYERS * spec.hidden_size)
    ids = unpack_ids(folder.raw(VOCABULARY, -(-spec.vocab_size // 8)), spec.vocab_size)
    if not len(ids):
        raise error("its vocabulary is empty")
    return TrainedHead(path, spec, folder, tuple(layers), norms, scale, ids, folder.info)


def pack_ids(ids: Iterable[int], vocab_size: int) -> npt.NDArray[np.uint8]:
    """A bit a token."""
    bits = np.zeros(vocab_size, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little")


def unpack_ids(bits: npt.NDArray[np.uint8], vocab_size: int) -> I32:
    """The tokens whose bits are set, in order."""
    return np.flatnonzero(np.unpackbits(bits, count=vocab_size, bitorder="little")).astype(np.int32)


def find_head(name: str, targets: Sequence[Path], places: Sequence[Path]) -> Path:
    """The folder of a head: `name` is a path, a folder in one of the places, or "auto" for the first one that fits.

    A head fits when it was trained for one of `targets`, the model that runs or the one that was made from. Raises
    CheckpointError.
    """
    digests = [sha256(target) for target in targets]
    if name != AUTO:
        found = next((p for p in (Path(name).expanduser(), *(q / name for q in places)) if (p / INFO).is_file()), None)
        if found is None:
            raise CheckpointError(f"there is no head {name[:100]!r}: no folder of that name with a {INFO}")
        owner = parent_of(found)
        if owner["sha256"] not in digests:
            raise CheckpointError(
                f"head {found} was trained for {owner['file']} (sha256 {owner['sha256'][:12]}...), not for "
                f"{targets[0].name} (sha256 {digests[0][:12]}...): train one with `narrows train head`"
            )
        return found
    heads = [p for place in places if place.is_dir() for p in sorted(place.iterdir()) if (p / INFO).is_file()]
    owners = {p: parent_of(p)["sha256"] for p in heads}
    found = next((p for digest in digests for p in heads if owners[p] == digest), None)
    if found is None:
        raise CheckpointError(f"there is no head for {targets[0].name}: `narrows train head` trains one")
    return found


def parent_of(path: Path) -> dict[str, str]:
    """The model that a head was trained for: its file and sha256."""
    parent = read_object(path / INFO).get("parent")
    known = parent if isinstance(parent, dict) else {}
    return {key: str(known.get(key, "unknown"))[:80] for key in ("file", "sha256")}
