"""Checkpoints on disk: GGUF files and Hugging Face directories behind one class."""

from __future__ import annotations

import os
from pathlib import Path

from .base import Checkpoint, CheckpointError, TensorInfo, open_regular
from .gguf import MAGIC, open_gguf
from .safetensors import open_directory

__all__ = ["Checkpoint", "CheckpointError", "TensorInfo", "open_checkpoint"]


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Opens a GGUF file, a Hugging Face directory, or a .safetensors file beside its config.json.

    Everything the file says about itself is checked against its size; tensors stay on disk. Raises CheckpointError.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise CheckpointError(f"{path} has no config.json: name a GGUF file, or a directory with config.json")
        return open_directory(path)
    with open_regular(path) as file:
        magic = file.read(4)
    if magic == MAGIC:
        return open_gguf(path)
    if path.suffix == ".safetensors":
        return open_directory(path.parent, single=path)
    raise CheckpointError(f"{path} is neither a GGUF file (it begins with {magic!r}) nor a .safetensors file")
