"""Benchmarks against a model whose cost is known, remembered bandwidth, and provenance."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from narrows.measure import bandwidth, provenance
from narrows.measure.decode import Bench, decode, prefill
from narrows.measure.samples import Samples, in_turn
from narrows.types import F32, I32, ForwardBatch, ForwardOutput

PAGE = 16
VOCAB = 50


class FakeModel:
    """Charges 1000 bytes of weights a step and 10 for each KV entry read; checks that what it reads was written."""

    def __init__(self) -> None:
        self.written: dict[tuple[int, int], int] = {}  # (page, offset) -> token
        self.batches: list[ForwardBatch] = []

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        self.batches.append(batch)
        for b, context in enumerate(batch.context_lens):
            first, last = batch.cu_seqlens[b], batch.cu_seqlens[b + 1]
            for row in range(first, last):
                at = int(context - last + row)
                assert batch.positions[row] == at
                self.written[int(batch.page_table[b, at // PAGE]), at % PAGE] = int(batch.tokens[row])
            for at in range(context):
                assert (int(batch.page_table[b, at // PAGE]), at % PAGE) in self.written
        kv_bytes = 10 * int(batch.context_lens.sum())
        return ForwardOutput(np.zeros((len(batch.logit_rows), VOCAB), np.float32), 1000, kv_bytes, 1e-6)


def argmax(logits: F32) -> I32:
    return logits.argmax(axis=1).astype(np.int32)


def bench(max_batch: int, max_context: int) -> Bench:
    return Bench(FakeModel(), vocab_size=VOCAB, page_size=PAGE, max_batch=max_batch, max_context=max_context)


def test_decode_rows_carry_the_bytes_of_their_own_context_and_batch() -> None:
    rows = list(decode({"": bench(4, 44)}, contexts=[40, 0], batches=[1, 4], argmax=argmax, steps=4, repeats=3))
    assert [(r["context"], r["batch"]) for r in rows] == [(0, 1), (0, 4), (40, 1), (40, 4)]
    assert [r["weight_bytes_per_token"] for r in rows] == [1000, 250, 1000, 250]
    assert [r["kv_bytes_per_token"] for r in rows] == [
        25,
        25,
        425,
        425,
    ]  # mean context of four steps is 2.5 entries longer
    for row in rows:
        speed = row["tokens_per_second"]
        assert 0 < speed["min"] <= speed["median"] <= speed["max"]
        step = row["step_seconds"]["median"]
        bytes_per_step = (row["weight_bytes_per_token"] + row["kv_bytes_per_token"]) * row["batch"]
        assert row["bytes_per_second"] == pytest.approx(bytes_per_step / step)
        assert json.loads(json.dumps(row)) == row


def test_several_stacks_take_turns() -> None:
    order: list[str] = []
    benches = {name: bench(1, 8) for name in ("a", "b")}
    for name, b in benches.items():
        b.step = lambda *args, name=name, step=b.step, **kw: (order.append(name), step(*args, **kw))[1]  # type: ignore[method-assign]
    rows = list(decode(benches, contexts=[0], batches=[1], argmax=argmax, steps=2, repeats=2))
    assert order == ["a", "a", "b", "b"] * 3  # one round that does not count
    assert [(row["stack"], row["context"], row["batch"]) for row in rows] == [("a", 0, 1), ("b", 0, 1)]
    assert rows[0]["ratio"] == {"median": 1, "min": 1, "max": 1}
    speeds = [row["tokens_per_second"] for row in rows]
    assert speeds[1]["min"] / speeds[0]["max"] <= rows[1]["ratio"]["median"] <= speeds[1]["max"] / speeds[0]["min"]
    assert Samples((2.0, 4.0)).over(Samples((1.0, 8.0))).values == (0.5, 2.0)


def test_prefill_reads_the_prompt_once_in_chunks() -> None:
    b = bench(1, 100)
    [row] = prefill({"": b}, tokens=[100], repeats=1, chunk=32)
    assert row["tokens"] == 100
    assert row["weight_bytes_per_token"] == 4 * 1000 / 100
    assert [len(x.tokens) for x in b.model.batches] == [32, 32, 32, 4] * 2  # type: ignore[attr-defined]


def test_fill_asks_for_no_logits_and_writes_every_request_its_own_pages() -> None:
    b = bench(3, 20)
    b.fill(0, 20)
    assert all(len(x.logit_rows) == 0 for x in b.model.batches)  # type: ignore[attr-defined]
    assert len(b.model.written) == 3 * 20  # type: ignore[attr-defined]


def test_samples_report_median_and_range() -> None:
    s = Samples((3.0, 1.0, 2.0))
    assert s.json() == {"median": 2.0, "min": 1.0, "max": 3.0}
    assert s.rate(6).values == (2.0, 6.0, 3.0)
    assert str(s) == "2 (1..3)"


def test_warmup_does_not_count() -> None:
    calls: list[int] = []
    [samples] = in_turn([lambda: calls.append(1)], repeats=3, warmup=2)
    assert len(samples.values) == 3
    assert len(calls) == 5
    with pytest.raises(ValueError, match="repeats is 0"):
        in_turn([lambda: None], repeats=0)


def test_bound_is_bandwidth_over_bytes() -> None:
    assert bandwidth.bound(100e6, 20.0) == 200.0
    with pytest.raises(ValueError, match="bytes_per_token is 0"):
        bandwidth.bound(0, 20.0)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[int, int, int]]:
    """Replaces the native measurement with one that answers 10 GB/s a thread and notes how it was called."""
    calls: list[tuple[int, int, int]] = []

    def read_bandwidth(num_bytes: int, num_threads: int, repeats: int) -> list[float]:
        calls.append((num_bytes, num_threads, repeats))
        return [10.0 * num_threads - i for i in range(repeats)]

    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path / "cache"))
    import narrows

    fake = SimpleNamespace(read_bandwidth=read_bandwidth, isa=lambda: "scalar")
    monkeypatch.setattr(narrows, "_native", fake, raising=False)
    return calls


def test_bandwidth_is_measured_once_for_each_thread_count(reader: list[tuple[int, int, int]]) -> None:
    assert bandwidth.bandwidth(2) == 20.0
    assert bandwidth.bandwidth(2) == 20.0
    assert bandwidth.bandwidth(1) == 10.0
    assert [threads for _, threads, _ in reader] == [2, 1]
    assert json.loads(bandwidth.cache_file().read_text()) == {bandwidth.machine_key(): {"2": 20.0, "1": 10.0}}


def test_the_best_bandwidth_ever_seen_is_kept(reader: list[tuple[int, int, int]]) -> None:
    bandwidth.cache_file().parent.mkdir(parents=True)
    bandwidth.cache_file().write_text(
        json.dumps({bandwidth.machine_key(): {"1": 12.5, "2": 3.0}, "another": {"2": 99}})
    )
    assert bandwidth.measure(1, repeats=3).values == (10.0, 9.0, 8.0)
    bandwidth.measure(2)
    assert bandwidth.bandwidth(1) == 12.5
    assert bandwidth.bandwidth(2) == 20.0
    assert json.loads(bandwidth.cache_file().read_text())["another"] == {"2": 99}


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"%s": 3}', '{"%s": {"2": "fast"}}', '{"%s": {"2": -1}}'])
def test_damaged_memory_is_measured_again(reader: list[tuple[int, int, int]], damage: str) -> None:
    bandwidth.cache_file().parent.mkdir(parents=True)
    bandwidth.cache_file().write_text(damage.replace("%s", bandwidth.machine_key()))
    assert bandwidth.bandwidth(2) == 20.0
    assert len(reader) == 1
    assert bandwidth.bandwidth(2) == 20.0
    assert len(reader) == 1


def test_cache_that_cannot_be_written_is_no_error(
    reader: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NARROWS_CACHE", str(tmp_path / "file"))
    assert bandwidth.bandwidth(2) == 20.0


def test_provenance_names_model_machine_and_command(
    reader: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"weights")
    monkeypatch.setattr("sys.argv", ["narrows", "bench", "decode", "my model"])
    record = provenance.provenance(threads=2, model=model)
    assert record["command"] == "narrows bench decode 'my model'"
    assert record["model"] == {"name": "m.gguf", "bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}
    assert record["threads"] == 2
    assert record["isa"] == "scalar"
    assert record["cpus"] >= 1
    assert record["cpu"]
    assert set(record["versions"]) == {"python", "narrows", "numpy", "tokenizers"}


def test_model_directory_is_hashed_in_order(tmp_path: Path) -> None:
    (tmp_path / "b").write_bytes(b"2")
    (tmp_path / "a").write_bytes(b"1")
    assert provenance.describe_model(tmp_path)["sha256"] == hashlib.sha256(b"12").hexdigest()


def test_kernels_are_timed_dense_and_sparse_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    from narrows import _native
    from narrows.compress.pattern import Pattern
    from narrows.measure import kernel

    calls: list[tuple[bool, int]] = []

    def timed(matrices: list, rows: int, threads: int, repeats: int) -> list[float]:
        calls.append((matrices[0].format.sparse, rows))
        return [1.0 if matrices[0].format.sparse else 2.0] * repeats

    monkeypatch.setattr(_native, "time_products", timed)
    monkeypatch.setattr(kernel, "SHAPE", (64, 128))
    sizes = {"batches": [1, 8], "threads": 1, "num_bytes": 1, "repeats": 2}
    rows = list(kernel.kernels(kernel.formats("int8:g64"), pattern=Pattern.parse("2:4"), **sizes))
    assert calls == [(False, 1), (True, 1)] * 3 + [(False, 8), (True, 8)] * 3
    assert [(r["format"], r["batch"], r["dense_ratio"]["median"]) for r in rows] == [
        ("int8:g64", 1, 1),
        ("int8:g64:sparse", 1, 2),
        ("int8:g64", 8, 1),
        ("int8:g64:sparse", 8, 2),
    ]
    assert rows[0]["bytes_per_weight"] == pytest.approx(1 + 2 / 64)
    assert rows[0]["bytes_per_second"] == pytest.approx(64 * 128 * (1 + 2 / 64) / 2)
    with pytest.raises(ValueError, match="has no sparse form"):
        kernel.formats("int8,int4:min")
