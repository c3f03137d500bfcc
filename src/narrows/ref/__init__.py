"""The oracle: the whole model in plain numpy, with no tricks, to check everything fast against."""

from .model import forward, hidden

__all__ = ["forward", "hidden"]
