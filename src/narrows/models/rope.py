"""Rotary frequencies: plain, linear, llama3 and yarn, from either kind of checkpoint.

The formulas are those of the papers and of `transformers`, computed in float64 and rounded to float32 once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..types import RopeSpec
from .base import Config, ModelError

F64 = npt.NDArray[np.float64]
KNOWN = ("default", "none", "linear", "llama3", "yarn")
ROPE_FREQS = "rope_freqs.weight"  # a GGUF tensor [D/2]: what llama3 scaling divides each frequency by


def read_rope(
    config: Config, head_dim: int, max_context: int, theta: float = 10000.0, layer_type: str | None = None
) -> RopeSpec:
    """The rotary embedding of the model, or of one of its layer types where config.json has an entry for each.

    `theta` is the family's default base. Raises ModelError for a scaling that is not known, or that is malformed.
    """
    if config.is_gguf:
        if config.integer("rope.dimension_count", 1, 1 << 16, head_dim) != head_dim:
            raise config.error("rope.dimension_count", f"heads (of {head_dim}) that rotate in part are not supported")
        return _divided(config, _scaled(config, head_dim, max_context, theta))
    params = _hf_section(config, layer_type)
    for section in (config, params):
        if section.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
            raise section.error("partial_rotary_factor", "heads that rotate in part are not supported")
    return _scaled(params, head_dim, max_context, theta)


def plain_rope(theta: float, head_dim: int) -> RopeSpec:
    """Rotary embedding without scaling."""
    return _spec(_plain(theta, head_dim))


def _hf_section(config: Config, layer_type: str | None) -> Config:
    """RoPE settings as one flat section: `rope_parameters` is how newer files spell `rope_theta` and `rope_scaling`."""
    key = "rope_parameters" if config.raw("rope_parameters") is not None else "rope_scaling"
    section = config.section(key)
    if layer_type is not None and layer_type in section.items():
        section = section.section(layer_type)
    for name, value in section.items().items():
        if isinstance(value, Mapping):
            raise section.error(name, f"one RoPE per layer type is not supported for {config.architecture} models")
    values = dict(section.items())
    if values.get("rope_theta") is None:
        values["rope_theta"] = config.raw("rope_theta")
    if "type" in values:  # the oldest spelling
        values.setdefault("rope_type", values["type"])
    return config.nested(key, values)


def _divided(config: Config, rope: RopeSpec) -> RopeSpec:
    """The frequencies over those of the divisors' tensor, where the file has one."""
    if ROPE_FREQS not in config.ckpt.tensors:
        return rope
    raw, count = config.ckpt.raw(ROPE_FREQS), len(rope.inv_freq)
    if raw.nbytes != 4 * count:
        raise ModelError(
            f"tensor {ROPE_FREQS!r} of {config.ckpt.path} has {raw.nbytes} bytes; {count} float32 values are needed"
        )
    divisors = np.frombuffer(raw.tobytes(), "<f4").astype(np.float64)
    if not ((divisors >= 1e-6) & (divisors <= 1e6)).all():
        raise ModelError(f"tensor {ROPE_FREQS!r} of {config.ckpt.path} must hold values between 1e-6 and 1e6")
    return _spec(np.array(rope.inv_freq) / divisors, rope.scale)


def _scaled(config: Config, head_dim: int, max_context: int, theta: float) -> RopeSpec:
    base = config.number("rope_theta", 1.0, 1e12, theta)
    freq = _plain(base, head_dim)
    # A GGUF file that gives a factor without a type means linear.
    implied = "linear" if config.is_gguf and config.raw("rope_factor") is not None else "default"
    kind = config.text("rope_type", implied)
    if kind in ("default", "none"):
        return _spec(freq)
    if kind not in KNOWN:
        raise config.error("rope_type", f"this RoPE scaling is not supported; known are {', '.join(KNOWN)}")
    factor = config.number("rope_factor", 1e-3, 1e4)
    if kind == "linear":
        return _spec(freq / factor)
    original = config.integer("rope_original_context", 1, 1 << 30, max_context)
    if kind == "llama3":
        return _spec(_llama3(config, freq, factor, original))
    return _yarn(config, freq, base, factor, original)


def _plain(base: float, head_dim: int) -> F64:
    return base ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)


def _llama3(config: Config, freq: F64, factor: float, original: int) -> F64:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended."""
    low = config.number("low_freq_factor", 1e-3, 1e4)
    high = config.number("high_freq_factor", 1e-3, 1e4)
    if high <= low:
        raise config.error("high_freq_factor", f"must be above low_freq_factor ({low:g})")
    rotations = original * freq / (2 * math.pi)  # turns a pair makes over the original context
    kept = np.clip((rotations - low) / (high - low), 0.0, 1.0)
    return (1 - kept) * freq / factor + kept * freq


def _yarn(config: Config, freq: F64, base: float, factor: float, original: int) -> RopeSpec:
    if base <= 1.0:
        raise config.error("rope_theta", "yarn needs a base above 1")
    dim = 2 * len(freq)

    def pair_with(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = pair_with(config.number("rope_beta_fast", 1e-3, 1e6, 32.0))
    high = pair_with(config.number("rope_beta_slow", 1e-3, 1e6, 1.0))
    if config.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(len(freq)) - low) / ((high - low) or 0.001), 0.0, 1.0)
    return _spec(freq / factor * ramp + freq * (1 - ramp), _yarn_scale(config, factor))


def _yarn_scale(config: Config, factor: float) -> float:
    def mscale(m: float = 1.0) -> float:
        return 0.1 * m * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = config.number("rope_attention_factor", 0.0, 1e3, 0.0)
    if config.is_gguf:  # there the given factor multiplies the usual one
        return mscale() * (given or 1.0)
    if given:
        return given
    m, m_all = config.number("mscale", 0.0, 1e3, 0.0), config.number("mscale_all_dim", 0.0, 1e3, 0.0)
    return mscale(m) / mscale(m_all) if m and m_all else mscale()


def _spec(freq: F64, scale: float = 1.0) -> RopeSpec:
    return RopeSpec(tuple(float(f) for f in freq.astype(np.float32)), scale)
