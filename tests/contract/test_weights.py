"""Loading weights: every tensor arrives as the file means it, in the format asked for, with or without the cache."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.numpy

from narrows.checkpoints import open_checkpoint
from narrows.machine import STALE_SECONDS
from narrows.models import declare
from narrows.types import TensorSource
from narrows.weights import FORMATS, Format, Packed, WeightError, cache, load, load_weights, parse_format, unpack

Q = gguf.GGMLQuantizationType
SPEC: Any = SimpleNamespace(architecture="test")


@pytest.fixture(autouse=True)
def cache_root(tmp_path, monkeypatch):
    root = tmp_path / "cache"
    monkeypatch.setenv("NARROWS_CACHE", str(root))
    return root


def as_floats(value: Packed | np.ndarray) -> np.ndarray:
    return unpack(value) if isinstance(value, Packed) else value


def load_path(path: Path, weights: str = "auto", **options: Any) -> dict[str, Packed | np.ndarray]:
    ckpt = open_checkpoint(path)
    return load_weights(ckpt, *declare(ckpt), weights, **options)


def expected(path: Path) -> dict[str, np.ndarray]:
    """Canonical tensors of a GGUF file by the reference reader, query and key rows brought to half-split order."""
    _, sources = declare(open_checkpoint(path))
    stored = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in gguf.GGUFReader(path).tensors}
    out = {}
    for name, source in sources.items():
        w = stored[source.name]
        if heads := source.interleaved_heads:
            dim = len(w) // heads
            rows = [h * dim + 2 * i + odd for h in range(heads) for odd in (0, 1) for i in range(dim // 2)]
            w = w[rows]
        out[name] = w.astype(np.float32)
    return out


# --- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_names_read_back(name):
    assert parse_format(name) == FORMATS[name]
    assert parse_format(str(FORMATS[name])) == FORMATS[name]


def test_settings_of_a_format():
    assert parse_format("int4") == Format(4, 32)
    assert parse_format("int8:g64") == Format(8, 64)
    assert parse_format("int3:min:g16") == parse_format("int3:g16:min") == Format(3, 16, minimum=True)
    assert str(Format(4, 32, True, True)) == "int4:g32:min:super"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("int44", "did you mean 'int4'"),
        ("", "unknown weight format"),
        ("int7", "unknown weight format"),
        ("int4:g48", "int4 takes one of g16, g32, g64"),
        ("int4:g32:g64", "int4 takes"),
        ("int4:min:min", "int4 takes"),
        ("bf16:g32", "bf16 takes no settings"),
        ("int4:g32:min:super", "int4 takes"),
    ],
)
def test_unknown_formats_are_explained(text, reason):
    with pytest.raises(WeightError, match=reason):
        parse_format(text)


# --- GGUF ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quant", [Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0])
def test_gguf_weights_arrive_bit_for_bit(quant, tiny_gguf):
    path = tiny_gguf(quant=quant)
    loaded, want = load_path(path), expected(path)
    assert list(loaded) == list(want)
    for name, w in want.items():
        got = loaded[name]
        assert isinstance(got, Packed) == (w.ndim == 2)
        assert np.array_equal(as_floats(got), w), name
        data = got.data if isinstance(got, Packed) else got
        assert data.ctypes.data % 64 == 0


@pytest.mark.parametrize("weights", ["int4", "int8:g64", "int4:g32:min", "bf16", "f32"])
def test_gguf_weights_in_another_format(weights, tiny_gguf):
    path = tiny_gguf(quant=Q.Q8_0)
    loaded, want = load_path(path, weights), expected(path)
    for name, w in want.items():
        got = loaded[name]
        if not isinstance(got, Packed):
            assert np.array_equal(got, w)
            continue
        assert got.format == parse_format(weights)
        error = np.linalg.norm(unpack(got) - w) / np.linalg.norm(w)
        assert error <= {"int4": 0.09, "int8:g64": 0.01, "int4:g32:min": 0.09, "bf16": 0.003, "f32": 0}[weights], name


def test_asking_for_the_format_of_the_file_changes_nothing(tiny_gguf):
    path = tiny_gguf(quant=Q.Q4_1)
    auto, same = load_path(path), load_path(path, "int4:g32:min")
    for name, w in auto.items():
        assert np.array_equal(as_floats(w), as_floats(same[name])), name


@pytest.mark.parametrize("chunk", [1, 5000])
def test_chunks_do_not_show(chunk, tiny_gguf, monkeypatch):
    path = tiny_gguf(quant=Q.Q4_0)
    for weights in ("auto", "int8"):
        whole = load_path(path, weights, cache=False)
        with monkeypatch.context() as patch:
            patch.setattr(load, "CHUNK_BYTES", chunk)
            pieces = load_path(path, weights, cache=False, num_threads=1)
        for name, w in whole.items():
            assert np.array_equal(as_floats(w), as_floats(pieces[name])), name


def test_loading_holds_the_weights_once(tmp_path):
    """Peak memory stays near the packed size: the file's pages are given back while it is read."""
    path, rows = tmp_path / "m.gguf", 64 << 10
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", np.ones((rows, 34 * 32), np.uint8), raw_dtype=Q.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    code = f"""if True:
    import sys
    from types import SimpleNamespace
    from narrows.checkpoints import open_checkpoint
    from narrows.types import TensorSource
    from narrows.weights import load_weights
    def peak():
        lines = open("/proc/self/status").read().splitlines()
        return next(int(x.split()[1]) << 10 for x in lines if x.startswith("VmHWM"))
    before = peak()
    ckpt = open_checkpoint(sys.argv[1])
    load_weights(ckpt, SimpleNamespace(architecture="t"), {{"w": TensorSource("w", ({rows}, 1024))}})
    print(peak() - before)
    """
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1.1 * path.stat().st_size + (32 << 20)


# --- safetensors ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A directory with two matrices and a vector, and the sources that name them."""
    rng = np.random.default_rng(5)
    arrays = {
        "m32": rng.standard_normal((33, 96)).astype(np.float32),
        "m16": rng.standard_normal((16, 64)).astype(np.float16),
        "v": rng.standard_normal(32).astype(np.float16),
    }
    path = tmp_path / "hf"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    safetensors.numpy.save_file(arrays, path / "model.safetensors")
    return path, arrays, {name: TensorSource(name, a.shape) for name, a in arrays.items()}


def test_safetensors_matrices_become_bfloat16(folder):
    path, arrays, sources = folder
    loaded = load_weights(open_checkpoint(path), SPEC, sources)
    for name in ("m32", "m16"):
        got, want = loaded[name], arrays[name].astype(np.float32)
        assert isinstance(got, Packed) and got.format == Format(type="bf16")
        assert np.array_equal(unpack(got), gguf.dequantize(gguf.quantize(want, Q.BF16), Q.BF16))
    assert np.array_equal(as_floats(loaded["v"]), arrays["v"].astype(np.float32))


@pytest.mark.parametrize(("weights", "bound"), [("int8", 0.01), ("int4", 0.1), ("int3:g16:min", 0.2), ("f16", 0.001)])
def test_safetensors_matrices_are_quantised_on_load(folder, weights, bound):
    path, arrays, sources = folder
    loaded = load_weights(open_checkpoint(path), SPEC, sources, weights)
    for name in ("m32", "m16"):
        want = arrays[name].astype(np.float32)
        assert np.linalg.norm(as_floats(loaded[name]) - want) <= bound * np.linalg.norm(want)


def test_heads_are_reordered_and_offsets_added(folder):
    path, arrays, _ = folder
    sources = {"q": TensorSource("m16", (16, 64), interleaved_heads=2), "b": TensorSource("v", (32,), 4, add=1.0)}
    loaded = load_weights(open_checkpoint(path), SPEC, sources, "f32")
    order = [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]
    assert np.array_equal(as_floats(loaded["q"]), arrays["m16"][order].astype(np.float32))
    halves = arrays["v"].astype(np.float32).reshape(4, 4, 2)
    assert np.array_equal(as_floats(loaded["b"]), halves.swapaxes(1, 2).reshape(-1) + 1)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (TensorSource("gone", (4,)), "'gone' is missing"),
        (TensorSource("m32", (96, 33)), r"'m32' .* has shape \(33, 96\), but the model needs \(96, 33\)"),
        (TensorSource("m32", (33, 96), interleaved_heads=4), "33 rows are not 4 heads"),
        (TensorSource("ids", (2, 2)), "'ids' .* is I64; it must be F32, F16, BF16"),
        (TensorSource("cube", (2, 2, 2)), "neither a vector nor a matrix"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, source, reason):
    path, _, _ = folder
    arrays = safetensors.numpy.load_file(path / "model.safetensors")
    arrays |= {"ids": np.zeros((2, 2), np.int64), "cube": np.zeros((2, 2, 2), np.float32)}
    safetensors.numpy.save_file(arrays, path / "model.safetensors")
    with pytest.raises(WeightError, match=reason):
        load_weights(open_checkpoint(path), SPEC, {"w": source})


# --- cache ---------------------------------------------------------------------------------------------------------


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return list(a) == list(b) and all(np.array_equal(as_floats(a[n]), as_floats(b[n])) for n in a)


def kept(root: Path) -> Path:
    (path,) = (root / "packed").iterdir()
    return path


@pytest.fixture
def packings(monkeypatch):
    """Counts the tensors that are packed rather than read from the cache."""
    calls = []
    fill = load._fill
    monkeypatch.setattr(load, "_fill", lambda *args: calls.append(args[1].name) or fill(*args))
    return calls


def test_second_start_reads_the_cache(tiny_path, cache_root, packings):
    first = load_path(tiny_path)
    assert packings and kept(cache_root).suffix == ".packed"
    packings.clear()
    second = load_path(tiny_path)
    assert not packings and same(first, second)
    load_path(tiny_path, "int4")
    assert packings and len(list((cache_root / "packed").iterdir())) == 2


def test_no_cache_leaves_no_trace(tiny_path, cache_root):
    load_path(tiny_path, cache=False)
    assert not cache_root.exists()


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "magic": lambda p: flip(p, 0),
    "key": lambda p: flip(p, 8),
    "size": lambda p: flip(p, 24),
    "checksum": lambda p: flip(p, cache.HEADER.size),
    "first byte": lambda p: flip(p, cache.ALIGNMENT),
    "last byte": lambda p: flip(p, -1),
    "empty": lambda p: p.write_bytes(b""),
    "half": lambda p: os.truncate(p, p.stat().st_size // 2),
    "one byte short": lambda p: os.truncate(p, p.stat().st_size - 1),
    "one byte more": lambda p: p.write_bytes(p.read_bytes() + b"\0"),
    "a directory": lambda p: (p.unlink(), p.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_cache_is_packed_again(damage, tiny_path, cache_root, packings):
    first = load_path(tiny_path)
    DAMAGE[damage](kept(cache_root))
    packings.clear()
    assert same(first, load_path(tiny_path)) and packings
    packings.clear()
    assert same(first, load_path(tiny_path))
    assert bool(packings) == (damage == "a directory")


def test_cache_follows_the_checkpoint_and_the_version(tiny_gguf, cache_root, packings, monkeypatch):
    path = tiny_gguf(quant=Q.Q8_0)
    load_path(path)
    for change in (
        lambda: os.utime(path, (1, 1)),
        lambda: path.write_bytes(tiny_gguf(quant=Q.Q8_0, seed=1).read_bytes()),
        lambda: monkeypatch.setattr(load, "PACK_VERSION", -1),
    ):
        change()
        packings.clear()
        loaded, want = load_path(path), expected(path)
        assert packings and all(np.array_equal(as_floats(loaded[n]), w) for n, w in want.items())
    assert kept(cache_root)  # the old files were replaced


def test_cache_that_cannot_be_written_does_not_matter(tiny_path, cache_root, packings):
    cache_root.write_text("a file where the directory should be")
    first = load_path(tiny_path)
    assert same(first, load_path(tiny_path, cache=False))


def test_full_disk_does_not_matter(tiny_path, cache_root, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        first = load_path(tiny_path)
    assert not list((cache_root / "packed").iterdir())
    assert same(first, load_path(tiny_path))


def test_what_a_killed_process_left_is_removed(tiny_path, cache_root):
    packed = cache_root / "packed"
    packed.mkdir(parents=True)
    for name, age in (("old.tmp", STALE_SECONDS + 60), ("new.tmp", 60)):
        (packed / name).write_bytes(b"x")
        now = (packed / name).stat().st_mtime
        os.utime(packed / name, (now - age, now - age))
    load_path(tiny_path)
    assert [p.name for p in packed.glob("*.tmp")] == ["new.tmp"]


def test_processes_that_start_at_once(tiny_gguf, cache_root):
    path = tiny_gguf(hidden=256, ffn=512, layers=4)
    code = """if True:
    import hashlib, sys
    from narrows.checkpoints import open_checkpoint
    from narrows.models import declare
    from narrows.weights import Packed, load_weights
    ckpt = open_checkpoint(sys.argv[1])
    digest = hashlib.sha256()
    for w in load_weights(ckpt, *declare(ckpt)).values():
        digest.update(w.data if isinstance(w, Packed) else w)
    print(digest.hexdigest())
    """
    command = [sys.executable, "-c", code, str(path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    results = [p.communicate(timeout=60) for p in running]
    assert len({out for out, _ in results}) == 1 and results[0][0], results
    assert all(not err for _, err in results)
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert again.stdout == results[0][0] and kept(cache_root).suffix == ".packed"


def test_default_model(smollm2_path):
    ckpt = open_checkpoint(smollm2_path)
    spec, sources = declare(ckpt)
    loaded = load_weights(ckpt, spec, sources)
    warm = load_weights(ckpt, spec, sources)
    stored = {t.name: t for t in gguf.GGUFReader(smollm2_path).tensors}
    for name in ("layers.0.q", "layers.29.down", "norm"):
        t = stored[sources[name].name]
        w = gguf.dequantize(t.data, t.tensor_type)
        if heads := sources[name].interleaved_heads:
            w = w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)
        assert np.array_equal(as_floats(loaded[name]), w), name
        assert np.array_equal(as_floats(warm[name]), w), name
