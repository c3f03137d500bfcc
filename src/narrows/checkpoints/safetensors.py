"""Hugging Face directories: config.json and safetensors files, in one piece or in shards.

A safetensors file is the length of a JSON header (8 bytes), the header, and the tensors without a gap between them.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from .base import MAX_JSON_BYTES, Checkpoint, CheckpointError, MappedFile, TensorInfo, parse_object, read_object

INDEX = "model.safetensors.index.json"
MAX_SHARDS = 1000
MAX_DIMS = 8
MAX_SIDE = 1 << 40
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


def open_directory(folder: Path, single: Path | None = None) -> Checkpoint:
    """Opens a directory with config.json and weights: `single` when given, else the index's shards or the only file.

    Raises CheckpointError naming the file, and the tensor and its byte in it.
    """
    config = read_object(folder / "config.json")
    if single is None and (folder / INDEX).is_file():
        files, tensors = _open_shards(folder)
    else:
        file = MappedFile(single or _only_file(folder))
        files, tensors = [file], read_tensors(file)
    return Checkpoint("safetensors", folder, config, tensors, tuple(files))


def read_tensors(file: MappedFile) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file, in the header's order. Raises CheckpointError."""
    path = file.path
    if file.size < 8:
        raise CheckpointError(f"{path}: a file of {file.size} bytes has no room for a header: it is truncated")
    length = int.from_bytes(file.map[:8], "little")
    if length > min(file.size - 8, MAX_JSON_BYTES):
        raise CheckpointError(
            f"{path}: byte 0 says that the header takes {length} bytes, but the file has {file.size - 8} after that "
            f"and at most {MAX_JSON_BYTES} are allowed: it is truncated, corrupt or not a safetensors file"
        )
    header = parse_object(file.map[8 : 8 + length], f"{path}: the header at byte 8")
    header.pop("__metadata__", None)
    data = file.num_header_bytes = 8 + length
    tensors = {name: _tensor(file, name, entry, data) for name, entry in header.items()}
    end = data
    for t in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
        if t.offset != end:
            how = "overlaps the tensor before it" if t.offset < end else "leaves a gap before it"
            raise CheckpointError(f"{path}: tensor {t.name[:100]!r} at byte {t.offset} {how} (expected at {end})")
        end += t.nbytes
    if end != file.size:
        raise CheckpointError(f"{path}: the tensors end at byte {end}, but the file at {file.size}: it is corrupt")
    return tensors


def _tensor(file: MappedFile, name: str, entry: Any, data: int) -> TensorInfo:
    def error(problem: str) -> CheckpointError:
        return CheckpointError(f"{file.path}: tensor {name[:100]!r}: {problem}")

    if not isinstance(entry, dict):
        raise error("its entry is not an object")
    dtype, shape, offsets = entry.get("dtype"), _integers(entry.get("shape")), _integers(entry.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise error(f"dtype {dtype!r:.40} is not one of {', '.join(ITEM_BYTES)}")
    if shape is None or len(shape) > MAX_DIMS or max(shape, default=0) > MAX_SIDE:
        raise error(f"shape {entry.get('shape')!r:.80} is not a list of up to {MAX_DIMS} sizes")
    if offsets is None or len(offsets) != 2:
        raise error(f"data_offsets {entry.get('data_offsets')!r:.80} is not a pair of offsets")
    begin, end = offsets
    room = file.size - data
    if not begin <= end <= room:
        raise error(f"data_offsets {offsets!r:.80} are not in order and within the {room} bytes from byte {data} on")
    nbytes = prod(shape) * ITEM_BYTES[dtype]
    if nbytes != end - begin:
        raise error(f"shape {shape} of {dtype} takes {nbytes} bytes, but data_offsets {offsets} hold {end - begin}")
    return TensorInfo(name, dtype, tuple(shape), nbytes, file, data + begin)


def _integers(value: Any) -> list[int] | None:
    """A list of natural numbers, else None. JSON's true is no number, though Python takes it for one."""
    return value if isinstance(value, list) and all(type(v) is int and v >= 0 for v in value) else None


def _only_file(folder: Path) -> Path:
    found = sorted(folder.glob("*.safetensors"))
    preferred = folder / "model.safetensors"
    if preferred in found or len(found) == 1:
        return preferred if preferred in found else found[0]
    if found:
        raise CheckpointError(f"{folder} has {len(found)} .safetensors files but no {INDEX}: download that as well")
    raise CheckpointError(f"{folder} has no .safetensors file: the download is incomplete")


def _open_shards(folder: Path) -> tuple[list[MappedFile], dict[str, TensorInfo]]:
    index = folder / INDEX
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is missing, empty or not an object")
    for name, shard in weight_map.items():
        # A shard may be a link, as in the hub's cache, but its name never leads out of the directory.
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or any(c in shard for c in "/\\:\0"):
            raise CheckpointError(
                f"{index}: tensor {name[:100]!r}: {shard!r:.100} does not name a .safetensors file in the directory"
            )
    shards = sorted(set(weight_map.values()))
    if len(shards) > MAX_SHARDS:
        raise CheckpointError(f"{index} names {len(shards)} files; at most {MAX_SHARDS} are allowed")
    files, stored = [], {}
    for shard in shards:
        files.append(MappedFile(folder / shard))
        stored[shard] = read_tensors(files[-1])
    for name, shard in weight_map.items():
        if name not in stored[shard]:
            raise CheckpointError(f"{index}: tensor {name[:100]!r} is not in {shard}")
    return files, {name: stored[shard][name] for name, shard in weight_map.items()}
