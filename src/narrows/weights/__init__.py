"""Weight formats: their names, packing on load, the packed cache, and the reference unpacker."""

from .format import FORMATS, OWN, Format, Packed, WeightError, parse_format
from .load import load_weights
from .unpack import unpack

__all__ = ["FORMATS", "OWN", "Format", "Packed", "WeightError", "load_weights", "parse_format", "unpack"]
