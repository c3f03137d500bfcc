"""Well-formed checkpoints: what is read is what was written."""

from __future__ import annotations

import json
import time

import gguf
import numpy as np
import pytest
import safetensors.numpy
from checkpoint_files import entry
from checkpoint_files import safetensors as safetensors_bytes

from narrows.checkpoints import CheckpointError, open_checkpoint


@pytest.fixture
def gguf_path(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_int32("i32", -5)
    writer.add_uint64("u64", 2**63)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "naïve 😀")
    writer.add_array("words", ["a", "", "Ġthe", "日本"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("flags", [True, False])
    rng = np.random.default_rng(0)
    writer.add_tensor("matrix", rng.standard_normal((3, 64)).astype(np.float32))
    writer.add_tensor("vector", np.arange(5, dtype=np.float32))
    blocks = gguf.quantize(rng.standard_normal((7, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q4_1)
    writer.add_tensor("quantised", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_metadata(gguf_path):
    meta = open_checkpoint(gguf_path).metadata
    assert meta["general.architecture"] == "llama"
    scalars = {"u8": 200, "i8": -3, "u16": 60000, "i16": -30000, "i32": -5, "u64": 2**63, "i64": -(2**62)}
    scalars |= {"f32": 0.5, "f64": 0.1, "yes": True, "text": "naïve 😀"}
    for name, value in scalars.items():
        assert meta[name] == value and type(meta[name]) is type(value), name
    assert meta["words"] == ["a", "", "Ġthe", "日本"]
    assert meta["ints"].tolist() == [1, -2, 3] and meta["ints"].dtype == np.int32
    assert meta["floats"].tolist() == [0.5, 1.5]
    assert meta["flags"].tolist() == [True, False] and meta["flags"].dtype == bool


def test_gguf_tensors_agree_with_the_reference_reader(gguf_path):
    ckpt = open_checkpoint(str(gguf_path))
    assert (ckpt.kind, ckpt.path) == ("gguf", gguf_path)
    reference = {t.name: t for t in gguf.GGUFReader(gguf_path).tensors}
    assert list(ckpt.tensors) == list(reference) == ["matrix", "vector", "quantised"]
    for name, t in ckpt.tensors.items():
        assert t.shape == tuple(reversed(reference[name].shape.tolist()))
        assert t.dtype == reference[name].tensor_type.name
        assert t.nbytes == reference[name].n_bytes
        assert np.array_equal(ckpt.raw(name), reference[name].data.view(np.uint8).reshape(-1))
    raw = ckpt.raw("matrix")
    before = raw.copy()
    ckpt.release("matrix")
    assert not raw.flags.writeable and np.array_equal(ckpt.raw("matrix"), before)


def test_large_vocabulary_opens_quickly(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_token_list([f"token {i}" for i in range(262_144)])
    writer.add_tensor("w", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    start = time.process_time()
    tokens = open_checkpoint(tmp_path / "m.gguf").metadata["tokenizer.ggml.tokens"]
    assert time.process_time() - start < 0.5
    assert len(tokens) == 262_144 and tokens[-1] == "token 262143"


def test_identity_follows_the_file(gguf_path):
    first = open_checkpoint(gguf_path).identity()
    assert open_checkpoint(gguf_path).identity() == first
    raw = gguf_path.read_bytes()
    gguf_path.write_bytes(raw.replace(b"Q4_1", b"Q4_2"))
    gguf_path.touch()
    assert open_checkpoint(gguf_path).identity() != first


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    return {
        "a.weight": rng.standard_normal((3, 4)).astype(np.float32),
        "b.weight": rng.standard_normal((5, 2)).astype(np.float16),
        "scalar": np.array(7, np.int64),
        "empty": np.zeros((0, 3), np.float32),
    }


def check(ckpt, arrays):
    assert ckpt.kind == "safetensors" and ckpt.metadata == {"model_type": "llama"}
    assert set(ckpt.tensors) == set(arrays)
    for name, a in arrays.items():
        assert ckpt.tensors[name].shape == a.shape
        assert ckpt.raw(name).tobytes() == a.tobytes()


def test_safetensors_directory_and_file(tmp_path, arrays):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    safetensors.numpy.save_file(arrays, tmp_path / "weights.safetensors", metadata={"format": "pt"})
    check(open_checkpoint(tmp_path), arrays)
    check(open_checkpoint(tmp_path / "weights.safetensors"), arrays)


def test_safetensors_shards_that_are_links(tmp_path, arrays):
    model, blobs = tmp_path / "model", tmp_path / "blobs"
    model.mkdir(), blobs.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    weight_map = {}
    for i, (name, a) in enumerate(arrays.items()):
        shard = f"model-{i}.safetensors"
        safetensors.numpy.save_file({name: a}, blobs / str(i))
        (model / shard).symlink_to(blobs / str(i))
        weight_map[name] = shard
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    ckpt = open_checkpoint(model)
    check(ckpt, arrays)
    assert len(ckpt.files) == 4


def test_bfloat16_keeps_its_name(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    file = safetensors_bytes({"w": entry("BF16", [2, 4])}, bytes(range(16)))
    (tmp_path / "model.safetensors").write_bytes(file)
    ckpt = open_checkpoint(tmp_path)
    assert ckpt.tensors["w"].dtype == "BF16" and ckpt.raw("w").tolist() == list(range(16))


def test_what_is_not_a_checkpoint_is_said_plainly(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("hello")
    for path, reason in [
        (tmp_path / "absent.gguf", "No such file"),
        (tmp_path, "no config.json"),
        (text, "neither a GGUF file"),
    ]:
        with pytest.raises(CheckpointError, match=reason):
            open_checkpoint(path)


def test_default_model(smollm2_path):
    ckpt = open_checkpoint(smollm2_path)
    assert ckpt.metadata["general.architecture"] == "llama"
    assert ckpt.tensors["token_embd.weight"].shape == (49152, 576)
    assert len(ckpt.metadata["tokenizer.ggml.tokens"]) == 49152
    assert ckpt.raw("blk.0.attn_norm.weight").view(np.float32).shape == (576,)
