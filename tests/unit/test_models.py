"""Declarations: what each family reads from a checkpoint, and that everything wrong is refused by name."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import CONFIGS, LLAMA3, YARN, gguf_checkpoint, hf_checkpoint

from narrows.models import FAMILIES, ModelError, declare, find_family


def refused(ckpt, *words: str) -> None:
    with pytest.raises(ModelError) as caught:
        declare(ckpt)
    for word in words:
        assert word in str(caught.value)


def inv_freq(label: str = "llama", **changes) -> np.ndarray:
    return np.array(declare(hf_checkpoint(label, **changes))[0].ropes[0].inv_freq)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_loads(name):
    assert find_family(name).traits is not None


def test_llama_spec():
    spec, sources = declare(hf_checkpoint("llama"))
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (3, 64, 4, 2, 16)
    assert (spec.ffn_size, spec.vocab_size, spec.max_context, spec.norm_eps) == (96, 97, 128, 1e-5)
    assert (spec.activation, spec.attention_scale, spec.embed_scale, spec.tied_head) == ("silu", 0.25, 1.0, False)
    assert spec.layer_window == spec.layer_rope == (0, 0, 0)
    np.testing.assert_allclose(spec.ropes[0].inv_freq, 10000.0 ** (-np.arange(0, 16, 2) / 16), rtol=1e-7)
    assert len(sources) == 3 + 3 * 9
    assert sources["layers.2.k"].name == "model.layers.2.self_attn.k_proj.weight"
    assert sources["layers.2.k"].shape == (32, 64) and sources["layers.2.k"].interleaved_heads == 0


def test_gguf_llama_has_interleaved_heads():
    spec, sources = declare(gguf_checkpoint("llama"))
    assert spec == declare(hf_checkpoint("llama"))[0]
    assert sources["layers.0.q"].interleaved_heads == 4 and sources["layers.0.k"].interleaved_heads == 2
    assert sources["layers.0.v"].interleaved_heads == sources["layers.0.o"].interleaved_heads == 0


def test_a_head_in_the_file_unties_gguf_and_the_flag_rules_hugging_face():
    spec, sources = declare(gguf_checkpoint("llama-tied"))
    assert spec.tied_head and "head" not in sources
    stored = hf_checkpoint("llama", tie_word_embeddings=True)
    spec, sources = declare(stored)  # a tied checkpoint that stores the head anyway
    assert spec.tied_head and "head" not in sources


def test_mistral_windows():
    assert declare(hf_checkpoint("mistral"))[0].layer_window == (9, 9, 9)
    assert declare(hf_checkpoint("mistral", sliding_window=None))[0].layer_window == (0, 0, 0)
    missing = hf_checkpoint("mistral")
    del missing.metadata["sliding_window"]
    assert declare(missing)[0].layer_window == (4096,) * 3


def test_qwen_biases_norms_and_windows():
    spec, sources = declare(hf_checkpoint("qwen2"))
    assert sources["layers.0.k_bias"].shape == (32,) and "layers.0.q_norm" not in sources
    assert spec.layer_window == (0, 0, 0)
    assert declare(hf_checkpoint("qwen2-window"))[0].layer_window == (0, 7, 7)
    types = ["sliding_attention", "full_attention", "full_attention"]
    assert declare(hf_checkpoint("qwen2-window", layer_types=types))[0].layer_window == (7, 0, 0)
    refused(hf_checkpoint("qwen2-window", layer_types=["sliding_attention"]), "layer_types", "each of the 3 layers")
    sources = declare(gguf_checkpoint("qwen3"))[1]
    assert sources["layers.1.q_norm"].shape == (32,) and "layers.0.q_bias" not in sources
    assert sources["layers.0.q"].interleaved_heads == 0


def test_gemma3_spec():
    spec, sources = declare(hf_checkpoint("gemma3"))
    assert spec.layer_window == (8, 8, 8, 8, 8, 0, 8) and spec.layer_rope == (1, 1, 1, 1, 1, 0, 1)
    assert spec.activation == "gelu_tanh" and spec.tied_head and spec.embed_scale == 8.0
    assert spec.attention_scale == pytest.approx(48**-0.5)
    exponents = -np.arange(0, 32, 2) / 32
    np.testing.assert_allclose(spec.ropes[0].inv_freq, 1e6**exponents / 8, rtol=1e-6)
    np.testing.assert_allclose(spec.ropes[1].inv_freq, 1e4**exponents, rtol=1e-6)
    assert sources["layers.0.ffn_norm"].name.endswith("pre_feedforward_layernorm.weight")
    assert {sources[f"layers.0.{n}"].add for n in ("attn_norm", "attn_post_norm", "ffn_post_norm", "q_norm")} == {1.0}
    assert sources["norm"].add == 1.0 and sources["layers.0.q"].add == 0.0


def test_gemma3_gguf_spec():
    spec, sources = declare(gguf_checkpoint("gemma3", **{"attention.sliding_window": 8}))
    assert spec.layer_window == (8, 8, 8, 8, 8, 0, 8) and spec.attention_scale == pytest.approx(32**-0.5)
    assert sources["layers.0.attn_post_norm"].name == "blk.0.post_attention_norm.weight"
    assert all(s.add == 0.0 for s in sources.values())
    refused(gguf_checkpoint("gemma3"), "gemma3.attention.sliding_window", "missing")


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_gemma3_multimodal_checkpoint(prefix):
    text = hf_checkpoint("gemma3")
    ckpt = hf_checkpoint("gemma3")
    ckpt.metadata = {"model_type": "gemma3", "text_config": text.metadata, "vision_config": {}}
    ckpt.arrays = {k.replace("model.", prefix, 1): v for k, v in text.arrays.items()}
    ckpt.tensors = {k.replace("model.", prefix, 1): v for k, v in text.tensors.items()}
    ckpt.tensors["vision_tower.vision_model.embeddings.patch_embedding.weight"] = SimpleNamespace(shape=(8, 8))
    ckpt.tensors["multi_modal_projector.mm_soft_emb_norm.weight"] = SimpleNamespace(shape=(8,))
    spec, sources = declare(ckpt)
    assert spec.num_layers == 7 and sources["embed"].name == f"{prefix}embed_tokens.weight"
    ckpt.metadata["text_config"] = [1]
    refused(ckpt, "text_config", "must be an object")


def test_linear_rope():
    np.testing.assert_allclose(inv_freq(rope_scaling={"type": "linear", "factor": 4.0}), inv_freq() / 4, rtol=1e-6)
    spec, _ = declare(gguf_checkpoint("llama", **{"rope.scaling.factor": 4.0}))  # no type means linear
    np.testing.assert_allclose(spec.ropes[0].inv_freq, inv_freq() / 4, rtol=1e-6)


def test_llama3_rope_keeps_fast_pairs_and_stretches_slow_ones():
    plain, scaled = inv_freq("llama3", rope_scaling=None), inv_freq("llama3")
    assert scaled[0] == plain[0] and scaled[-1] == pytest.approx(plain[-1] / 8)
    wavelength = 2 * math.pi / plain[2]
    share = (32 / wavelength - 1) / (4 - 1)
    assert 0 < share < 1
    assert scaled[2] == pytest.approx(plain[2] * (share + (1 - share) / 8), rel=1e-6)


def test_llama3_rope_of_a_gguf_file_is_a_tensor_of_divisors():
    ckpt = gguf_checkpoint("llama3")
    divisors = (inv_freq("llama3", rope_scaling=None) / inv_freq("llama3")).astype(np.float32)
    ckpt.arrays["rope_freqs.weight"] = divisors
    ckpt.tensors["rope_freqs.weight"] = SimpleNamespace(shape=(16,))
    np.testing.assert_allclose(declare(ckpt)[0].ropes[0].inv_freq, inv_freq("llama3"), rtol=1e-6)
    ckpt.arrays["rope_freqs.weight"] = divisors[:3]
    refused(ckpt, "rope_freqs.weight", "16 float32 values")
    ckpt.arrays["rope_freqs.weight"] = divisors * 0
    refused(ckpt, "rope_freqs.weight", "between 1e-6 and 1e6")


def test_yarn_rope():
    spec, _ = declare(hf_checkpoint("yarn"))
    assert spec.ropes[0].scale == pytest.approx(0.1 * math.log(4) + 1)
    plain = inv_freq("yarn", rope_scaling=None)
    assert spec.ropes[0].inv_freq[0] == plain[0]
    assert spec.ropes[0].inv_freq[-1] == pytest.approx(plain[-1] / 4, rel=1e-6)
    gguf = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
    assert declare(gguf_checkpoint("yarn", **gguf))[0].ropes == spec.ropes
    given, _ = declare(hf_checkpoint("yarn", rope_scaling={**YARN, "attention_factor": 1.5}))
    assert given.ropes[0].scale == 1.5


def test_newer_spelling_of_rope_settings():
    ckpt = hf_checkpoint("llama3")
    del ckpt.metadata["rope_theta"], ckpt.metadata["rope_scaling"]
    ckpt.metadata["rope_parameters"] = {**LLAMA3, "rope_theta": 10000.0}
    assert declare(ckpt)[0] == declare(hf_checkpoint("llama3"))[0]
    ckpt.metadata["rope_parameters"] = {"full_attention": {"rope_theta": 5.0}}
    refused(ckpt, "rope_parameters.full_attention", "not supported")

    gemma = hf_checkpoint("gemma3")
    for key in ("rope_theta", "rope_scaling", "rope_local_base_freq"):
        del gemma.metadata[key]
    gemma.metadata["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert declare(gemma)[0] == declare(hf_checkpoint("gemma3"))[0]


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "surprise"])
def test_other_rope_scalings_are_refused_by_name(kind):
    refused(hf_checkpoint("llama", rope_scaling={"rope_type": kind, "factor": 2.0}), "rope_scaling.rope_type", kind)
    refused(gguf_checkpoint("llama", **{"rope.scaling.type": kind}), "llama.rope.scaling.type", kind)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": None}, ["num_hidden_layers", "llama model needs it"]),
        ({"num_hidden_layers": 0}, ["num_hidden_layers is 0", "between 1 and 1024"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers is 1000000000"]),
        ({"hidden_size": "64"}, ["hidden_size is '64'", "must be an integer"]),
        ({"hidden_size": True}, ["hidden_size is True", "must be an integer"]),
        ({"num_key_value_heads": 3}, ["num_key_value_heads is 3", "divide"]),
        ({"head_dim": 24}, ["heads of 24 values", "multiple of 16"]),
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, ["num_attention_heads is 3", "hidden size (64)"]),
        ({"rms_norm_eps": float("nan")}, ["rms_norm_eps is nan"]),
        ({"rms_norm_eps": [1]}, ["rms_norm_eps is [1]", "must be a number"]),
        ({"rope_theta": -1.0}, ["rope_theta is -1.0"]),
        ({"rope_theta": 10**400}, ["rope_theta is 1000"]),
        ({"hidden_act": "relu"}, ["hidden_act is 'relu'", "silu"]),
        ({"hidden_act": 3}, ["hidden_act is 3", "must be a string"]),
        ({"tie_word_embeddings": "no"}, ["tie_word_embeddings is 'no'", "true or false"]),
        ({"attention_bias": True}, ["attention_bias is True", "not supported"]),
        ({"num_local_experts": 8}, ["num_local_experts is 8", "mixture-of-experts"]),
        ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor is 0.5"]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, ["rope_parameters.partial_rotary_factor is 0.5"]),
        ({"quantization_config": {"bits": 4}}, ["quantization_config", "GGUF"]),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, ["rope_scaling.low_freq_factor is missing"]),
        ({"rope_scaling": [8]}, ["rope_scaling is [8]", "must be an object"]),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, ["rope_scaling.high_freq_factor is 1.0"]),
        ({"vocab_size": 98}, ["model.embed_tokens.weight", "(97, 64)", "(98, 64)"]),
    ],
)
def test_malformed_configurations_are_refused_by_name(changes, words):
    refused(hf_checkpoint("llama", **changes), "tiny", *words)


def test_malformed_gguf_metadata_is_refused_by_name():
    refused(gguf_checkpoint("llama", block_count=-3), "llama.block_count is -3")
    refused(gguf_checkpoint("llama", **{"attention.head_count": [4, 4]}), "llama.attention.head_count is [4, 4]")
    refused(gguf_checkpoint("llama", expert_count=8), "llama.expert_count is 8", "mixture-of-experts")
    refused(gguf_checkpoint("llama", expert_count=np.arange(3)), "llama.expert_count")
    refused(gguf_checkpoint("llama", **{"rope.dimension_count": 8}), "llama.rope.dimension_count is 8", "of 16")
    refused(gguf_checkpoint("llama", **{"attention.value_length": 32}), "llama.attention.value_length is 32")
    ckpt = gguf_checkpoint("llama")
    del ckpt.tensors["token_embd.weight"]
    refused(ckpt, "token_embd.weight")


def test_missing_misshapen_and_strange_tensors_are_named():
    ckpt = gguf_checkpoint("llama")
    moved = ckpt.tensors.pop("blk.1.ffn_up.weight")
    refused(ckpt, "'blk.1.ffn_up.weight' is missing from tiny.gguf")
    ckpt.tensors["blk.1.ffn_up.weight"] = SimpleNamespace(shape=(64, 96))
    refused(ckpt, "'blk.1.ffn_up.weight'", "(64, 96)", "(96, 64)")
    ckpt.tensors["blk.1.ffn_up.weight"] = moved
    ckpt.tensors["blk.1.attn_q.bias"] = SimpleNamespace(shape=(64,))
    refused(ckpt, "'blk.1.attn_q.bias'", "no place in a llama model")
    refused(hf_checkpoint("llama", num_hidden_layers=2), "'model.layers.2.", "no place")


def test_tensors_that_repeat_the_configuration_are_ignored():
    ckpt = hf_checkpoint("llama")
    ckpt.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = SimpleNamespace(shape=(8,))
    declare(ckpt)


def test_unknown_architectures_are_named_with_the_known_ones():
    refused(hf_checkpoint("llama", model_type="qwen33"), "'qwen33'", "did you mean 'qwen3'", "gemma3")
    refused(hf_checkpoint("llama", model_type=None), "does not name its architecture", "model_type")
    ckpt = gguf_checkpoint("llama")
    ckpt.metadata["general.architecture"] = 7
    refused(ckpt, "general.architecture")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from(sorted(CONFIGS)), st.data())
def test_any_value_anywhere_is_accepted_or_refused_cleanly(label, data):
    keys = [*CONFIGS[label], "layer_types", "text_config", "rope_parameters", "num_experts", "attention_bias"]
    config = {data.draw(st.sampled_from(keys)): data.draw(JSON)}
    try:
        spec, _ = declare(hf_checkpoint(label, **config))
    except ModelError as error:
        assert str(error)
    else:
        assert all(math.isfinite(f) for f in spec.ropes[0].inv_freq), json.dumps(config)


def test_default_model(smollm2_path):
    from narrows.checkpoints import open_checkpoint

    spec, sources = declare(open_checkpoint(smollm2_path))
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads) == (30, 576, 9, 3)
    assert spec.tied_head and spec.max_context == 8192 and sources["layers.29.q"].interleaved_heads == 9
