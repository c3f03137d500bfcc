"""The oracle: the whole model in plain numpy, with no tricks, to check everything fast against."""

from .model import forward

__all__ = ["forward"]
