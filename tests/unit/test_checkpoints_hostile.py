"""Malformed checkpoints: each is refused with an error that says where, soon, and without taking memory."""

from __future__ import annotations

import contextlib
import json
import os
import time
import tracemalloc

import numpy as np
import pytest
from checkpoint_files import (
    ARCHITECTURE,
    ARRAY,
    BOOL,
    Q4_0,
    Q4_K,
    STRING,
    U32,
    array,
    entry,
    gguf,
    key,
    safetensors,
    string,
    tensor,
    u32,
    u64,
)

from narrows.checkpoints import CheckpointError, open_checkpoint
from narrows.models import declare

MAX_SECONDS, MAX_EXTRA_BYTES = 10.0, 64 << 20  # of processor time, on a slow machine


def open_measured(path, size):
    """Opens within the limits on time and memory, whatever the outcome. Memory is measured apart: that takes time."""
    start = time.process_time()
    with contextlib.suppress(CheckpointError):
        open_checkpoint(path)
    assert time.process_time() - start < MAX_SECONDS
    tracemalloc.start()
    try:
        return open_checkpoint(path)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < size + MAX_EXTRA_BYTES


def refused(path, size, match):
    with pytest.raises(CheckpointError, match=match) as caught:
        open_measured(path, size)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 2000


WIDE = array(STRING, 240, string("😀" + "a" * 65_000) * 240)  # four bytes a character once it is read
GGUF_CASES = {
    # the 36-byte files of a known crash elsewhere: lengths near 2^63 and 2^40
    "key length 2^63": (gguf((), (), b"", num_keys=1)[:24] + u64(2**63 - 1) + b"abcd", "key 0 of 1 at byte 24"),
    "key length 2^40": (gguf((), (), b"", num_keys=1)[:24] + u64(2**40) + b"abcd", "key 0 of 1 at byte 24"),
    "value length 2^63": (gguf((ARCHITECTURE, key("k", STRING, u64(2**63 - 1)))), r"key 1 of 2 \('k'\) at byte 82"),
    "value length 2^64 - 8": (gguf((key("k", STRING, u64(-8)),)), r"key 0 of 1 \('k'\) at byte"),
    "empty": (b"", "neither a GGUF file"),
    "magic only": (b"GGUF", "header at byte 4"),
    "magic": (gguf(magic=b"GGML"), "neither a GGUF file"),
    "version 1": (gguf(version=1), "version 1"),
    "version 4": (gguf(version=4), "version 4"),
    "big-endian": (gguf(version=3 << 24), "big-endian"),
    "tensor count": (gguf(num_tensors=2**63), "tensors cannot be in a file"),
    "tensor count, plausible": (gguf(num_tensors=3, data=bytes(64)), "tensor 1 of 3|tensor 2 of 3"),
    "key count": (gguf(num_keys=2**64 - 1), "metadata keys cannot be in a file"),
    "key count, plausible": (gguf(num_keys=4), "metadata key"),
    "keys one short": (gguf(num_keys=0), "tensor 0 of 1"),
    "empty key": (gguf((key("", U32, u32(1)),)), "its name is empty"),
    "key not UTF-8": (gguf((key(b"a\xff", U32, u32(1)),)), "not valid UTF-8"),
    "key too long": (gguf((key("k" * 70_000, U32, u32(1)),)), "at most 65536"),
    "duplicate key": (gguf((ARCHITECTURE, ARCHITECTURE)), "key 1 of 2 .*twice"),
    "value type": (gguf((key("k", 13, u32(1)),)), "unknown type 13"),
    "value type, huge": (gguf((key("k", 2**32 - 1, u32(1)),)), "unknown type 4294967295"),
    "boolean": (gguf((key("k", BOOL, b"\x02"),)), "0 or 1, not 2"),
    "value not UTF-8": (gguf((key("k", STRING, string(b"\xc3\x28")),)), "not valid UTF-8"),
    "nested array": (gguf((key("k", ARRAY, array(ARRAY, 1, array(U32, 1, u32(1)))),)), "arrays of arrays"),
    "array type": (gguf((key("k", ARRAY, array(99, 1)),)), "element type 99"),
    "array length": (gguf((key("k", ARRAY, array(U32, 2**62)),)), "array of 4611686018427387904 values"),
    "array length, bytes wrap": (gguf((key("k", ARRAY, array(U32, 2**62 + 1)),)), "file ends after"),
    "array of booleans": (gguf((key("k", ARRAY, array(BOOL, 2, b"\x01\x07")),)), "0 or 1"),
    "string array length": (gguf((key("k", ARRAY, array(STRING, 2**61)),)), "strings cannot be in"),
    "string in array": (gguf((key("k", ARRAY, array(STRING, 1, u64(2**63))),)), "string 0 of 1"),
    "string in array, not UTF-8": (
        gguf((key("k", ARRAY, array(STRING, 2, string("a") + string(b"\xff"))),)),
        "string 1",
    ),
    "string array runs out": (
        gguf((key("k", ARRAY, array(STRING, 4, string("a" * 40))),), (), b"", alignment=1),
        "ends before string 1",
    ),
    "text that grows": (gguf((key("k", ARRAY, WIDE), key("l", ARRAY, WIDE))), "more text than any vocabulary"),
    "text of 20 MB": (gguf((key("k", STRING, string("😀" + "a" * 20_000_000)),)), "at most 15728640"),
    "alignment 0": (gguf((key("general.alignment", U32, u32(0)),)), "alignment.*power of two"),
    "alignment 24": (gguf((key("general.alignment", U32, u32(24)),)), "alignment.*power of two"),
    "alignment 2^31": (gguf((key("general.alignment", U32, u32(2**31)),)), "alignment.*power of two"),
    "alignment as text": (gguf((key("general.alignment", STRING, string("32")),)), "alignment.*power of two"),
    "alignment as array": (gguf((key("general.alignment", ARRAY, array(U32, 1, u32(32))),)), "alignment.*power of two"),
    "tensor without a name": (gguf(tensors=(tensor(""),)), "its name is empty"),
    "tensor name too long": (gguf(tensors=(tensor("n" * 2000),)), "at most 1024"),
    "tensor name not UTF-8": (gguf(tensors=(tensor(b"\xfe"),)), "not valid UTF-8"),
    "duplicate tensor": (
        gguf(tensors=(tensor(), tensor(offset=32)), data=bytes(64)),
        "another tensor has the same name",
    ),
    "no dimensions": (gguf(tensors=(tensor(dims=()),)), "0 dimensions"),
    "five dimensions": (gguf(tensors=(tensor(dims=(1,) * 5),)), "5 dimensions"),
    "2^32 - 1 dimensions": (gguf(tensors=(tensor(num_dims=2**32 - 1),)), "4294967295 dimensions"),
    "dimension 0": (gguf(tensors=(tensor(dims=(4, 0)),)), "not all between 1"),
    "dimension -1": (gguf(tensors=(tensor(dims=(4, -1)),)), "not all between 1"),
    "product overflows": (gguf(tensors=(tensor(dims=(2**32, 2**32)),)), "it takes 73786976294838206464 bytes"),
    "product overflows to 0": (gguf(tensors=(tensor(dims=(2**40, 2**24, 1, 1)),)), "it takes"),
    "more than the file": (gguf(tensors=(tensor(dims=(1000, 1000)),)), "it takes 4000000 bytes"),
    "tensor type": (gguf(tensors=(tensor(kind=4),)), "GGML type 4 is not supported"),
    "tensor type, huge": (gguf(tensors=(tensor(kind=2**32 - 1),)), "GGML type 4294967295"),
    "part of a block": (gguf(tensors=(tensor(dims=(33, 1), kind=Q4_0),)), "blocks of 32"),
    "part of a super-block": (gguf(tensors=(tensor(dims=(128, 1), kind=Q4_K),)), "blocks of 256"),
    "offset misaligned": (gguf(tensors=(tensor(offset=4),), data=bytes(64)), "not a multiple of the alignment"),
    "offset past the end": (gguf(tensors=(tensor(offset=2**40),)), "past the end"),
    "offset wraps": (gguf(tensors=(tensor(offset=2**64 - 32),)), "past the end"),
    "last byte missing": (gguf()[:-1], "past the end"),
    "overlap": (gguf(tensors=(tensor(), tensor("v", offset=0))), "overlaps tensor"),
    "overlap in part": (gguf(tensors=(tensor("v", (16,)), tensor(offset=32)), data=bytes(96)), "overlaps tensor 'v'"),
}


@pytest.mark.parametrize("case", GGUF_CASES)
def test_malformed_gguf(case, tmp_path):
    data, match = GGUF_CASES[case]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    refused(path, len(data), match)


def test_the_builder_makes_good_files(tmp_path):
    """The cases above are each one step away from these."""
    path = tmp_path / "m.gguf"
    for data in (
        gguf(),
        gguf(version=2),
        gguf((ARCHITECTURE, key("general.alignment", U32, u32(64))), alignment=64),
        gguf(tensors=(tensor("v", (16,)), tensor(offset=64)), data=bytes(96)),
        gguf((key("k", ARRAY, array(STRING, 0)),), (), b""),
    ):
        path.write_bytes(data)
        open_checkpoint(path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "m.safetensors").write_bytes(safetensors({"w": entry()}))
    assert open_checkpoint(tmp_path / "m.safetensors").raw("w").nbytes == 16


def test_every_truncation_of_a_gguf_is_refused(tmp_path):
    strings = array(STRING, 2, string("a") + string("b"))
    data = gguf((ARCHITECTURE, key("k", ARRAY, strings), key("n", ARRAY, array(U32, 2, u32(1) + u32(2)))))
    path = tmp_path / "m.gguf"
    for n in range(4, len(data)):
        path.write_bytes(data[:n])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_of_a_gguf_do_no_harm(seed, tiny_path, tmp_path):
    """A file with changed bytes is refused, or opens and then holds what it says."""
    good, rng = tiny_path.read_bytes(), np.random.default_rng(seed)
    header = open_checkpoint(tiny_path).files[0].num_header_bytes
    path = tmp_path / "m.gguf"
    for _ in range(60):
        bad = bytearray(good)
        for at in rng.integers(4, header, rng.integers(1, 4)):
            bad[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        try:
            ckpt = open_measured(path, len(bad))
            assert all(ckpt.raw(name).nbytes == t.nbytes for name, t in ckpt.tensors.items())
            declare(ckpt)
        except ValueError as error:
            assert str(error)


GAP = {"a": entry("U8", [4], [0, 4]), "b": entry("U8", [4], [8, 12])}
DEEP = b"[" * 200_000 + b"]" * 200_000
SAFETENSORS_CASES = {
    # the 82-byte file of a known read out of bounds elsewhere
    "shape larger than the data": (
        safetensors(b'{"w":{"dtype":"F32","shape":[1000,1000],"data_offsets":[0,4]}}'.ljust(70), bytes(4)),
        "takes 4000000 bytes, but data_offsets",
    ),
    "empty": (b"", "is empty"),
    "seven bytes": (bytes(7), "no room for a header"),
    "header length 2^64 - 1": (
        safetensors({"w": entry()}, length=2**64 - 1),
        "header takes 18446744073709551615 bytes",
    ),
    "header length one too many": (safetensors({"w": entry()}, b"", length=2**10), "header takes 1024 bytes"),
    "header over the limit": (safetensors(b'{"w":1}'.ljust(3 << 20)), "at most 2097152 are allowed"),
    "header cut short": (safetensors({"w": entry()}, length=20), "not valid JSON"),
    "no JSON": (safetensors(b"\x80\x02pickle"), "not valid JSON"),
    "not UTF-8": (safetensors(b'{"\xff":1}'), "not valid JSON"),
    "a list": (safetensors([1]), "must hold a JSON object"),
    "deep JSON": (safetensors(DEEP), "nested too deeply"),
    "deep JSON in an entry": (safetensors(b'{"w":' + DEEP + b"}"), "nested too deeply"),
    "wide JSON": (safetensors(b'{"w":[' + b"[]," * 600_000 + b"[]]}"), "not an object"),
    "number of 5000 digits": (safetensors(b'{"w":' + b"9" * 5000 + b"}"), "not valid JSON"),
    "duplicate tensor": (safetensors(b'{"w":{},"w":{}}'), "'w' appears twice"),
    "entry is a number": (safetensors({"w": 1}), "not an object"),
    "no dtype": (safetensors({"w": {"shape": [4], "data_offsets": [0, 16]}}), "dtype None"),
    "dtype unknown": (safetensors({"w": entry("F31")}), "dtype 'F31'"),
    "dtype a list": (safetensors({"w": entry(["F32"])}), "dtype"),
    "no shape": (safetensors({"w": {"dtype": "F32", "data_offsets": [0, 16]}}), "shape None"),
    "shape a number": (safetensors({"w": entry(shape=4)}), "shape 4"),
    "shape negative": (safetensors({"w": entry(shape=[-2, -2])}), "shape"),
    "shape of floats": (safetensors({"w": entry(shape=[4.0])}), "shape"),
    "shape of booleans": (safetensors({"w": entry(shape=[4, True])}), "shape"),
    "shape overflows": (safetensors({"w": entry(shape=[2**40] * 8)}), "takes"),
    "shape of giants": (safetensors({"w": entry(shape=[10**4000] * 8)}), "shape"),
    "shape of many": (safetensors({"w": entry(shape=[1] * 100_000)}), "up to 8 sizes"),
    "offsets missing": (safetensors({"w": {"dtype": "F32", "shape": [4]}}), "data_offsets None"),
    "three offsets": (safetensors({"w": entry(offsets=[0, 16, 32])}), "not a pair"),
    "offsets reversed": (safetensors({"w": entry(offsets=[16, 0])}), "not in order"),
    "offsets negative": (safetensors({"w": entry(offsets=[-16, 0])}), "not a pair"),
    "offsets past the end": (safetensors({"w": entry(offsets=[16, 32])}), "within the 16 bytes"),
    "offsets near 2^64": (safetensors({"w": entry(offsets=[2**64 - 16, 2**64])}), "within the 16 bytes"),
    "dtype of another size": (safetensors({"w": entry("F16")}), "takes 8 bytes"),
    "overlap": (safetensors({"a": entry(), "b": entry()}), "overlaps"),
    "gap": (safetensors(GAP, bytes(12)), "leaves a gap"),
    "bytes left over": (safetensors({"w": entry()}, bytes(20)), "but the file at"),
    "truncated": (safetensors({"w": entry()}, bytes(15)), "within the 15 bytes"),
}


@pytest.mark.parametrize("case", SAFETENSORS_CASES)
def test_malformed_safetensors(case, tmp_path):
    data, match = SAFETENSORS_CASES[case]
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    refused(path, len(data), match)


def test_every_truncation_of_a_safetensors_file_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    path, data = tmp_path / "model.safetensors", safetensors({"w": entry()})
    for n in range(len(data)):
        path.write_bytes(data[:n])
        with pytest.raises(CheckpointError):
            open_checkpoint(path)


CONFIG_CASES = {
    "empty": (b"", "not valid JSON"),
    "no JSON": (b"{", "not valid JSON"),
    "a list": (b"[]", "must hold a JSON object"),
    "null": (b"null", "must hold a JSON object"),
    "deep": (DEEP, "nested too deeply"),
    "not UTF-8": (b"\xff\xfe", "not valid JSON"),
    "duplicate": (b'{"a": 1, "a": 2}', "appears twice"),
    "too large": (b" " * (2 << 20) + b"{}", "larger than the 2 MiB"),
}


@pytest.mark.parametrize("case", CONFIG_CASES)
def test_malformed_config(case, tmp_path):
    data, match = CONFIG_CASES[case]
    (tmp_path / "config.json").write_bytes(data)
    (tmp_path / "model.safetensors").write_bytes(safetensors({"w": entry()}))
    with pytest.raises(CheckpointError, match=match):
        open_measured(tmp_path, len(data))


INDEX_CASES = {
    "no weight_map": ({}, "weight_map"),
    "weight_map a list": ({"weight_map": ["a"]}, "weight_map"),
    "weight_map empty": ({"weight_map": {}}, "weight_map"),
    "file a number": ({"weight_map": {"w": 1}}, "does not name"),
    "parent directory": ({"weight_map": {"w": "../model.safetensors"}}, "does not name"),
    "absolute": ({"weight_map": {"w": "/etc/x.safetensors"}}, "does not name"),
    "subdirectory": ({"weight_map": {"w": "a/b.safetensors"}}, "does not name"),
    "backslashes": ({"weight_map": {"w": "..\\m.safetensors"}}, "does not name"),
    "null byte": ({"weight_map": {"w": "m\0.safetensors"}}, "does not name"),
    "another kind of file": ({"weight_map": {"w": "config.json"}}, "does not name"),
    "missing shard": ({"weight_map": {"w": "gone.safetensors"}}, "No such file"),
    "missing tensor": ({"weight_map": {"v": "model.safetensors"}}, "'v' is not in model.safetensors"),
    "too many shards": ({"weight_map": {str(i): f"{i}.safetensors" for i in range(1001)}}, "at most 1000"),
}


@pytest.mark.parametrize("case", INDEX_CASES)
def test_malformed_index(case, tmp_path):
    index, match = INDEX_CASES[case]
    text = json.dumps(index)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(safetensors({"w": entry()}))
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=match):
        open_measured(tmp_path, len(text))


def test_what_never_ends_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "m.gguf")
    for path in (tmp_path / "m.gguf", "/dev/zero"):
        with pytest.raises(CheckpointError, match="not a regular file"):
            open_checkpoint(path)


def test_flipped_bits_of_a_safetensors_file_do_no_harm(tmp_path):
    good, rng = safetensors({"a": entry(), "b": entry("BF16", [2, 4], [16, 32])}, bytes(32)), np.random.default_rng(0)
    (tmp_path / "config.json").write_text("{}")
    path = tmp_path / "model.safetensors"
    for at in range(len(good) - 32):
        bad = bytearray(good)
        bad[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bad)
        try:
            ckpt = open_checkpoint(tmp_path)
            assert sum(ckpt.raw(name).nbytes for name in ckpt.tensors) == 32
        except CheckpointError as error:
            assert str(error)
