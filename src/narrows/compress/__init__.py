"""Pruning and quantising a model on the text it writes itself: methods by name, and what they share."""

from __future__ import annotations

# name -> "module:Class"
SOLVERS = {
    "sparsegpt": "narrows.compress.sparsegpt:SparseGPT",
    "wanda": "narrows.compress.wanda:Wanda",
}

__all__ = ["SOLVERS"]
