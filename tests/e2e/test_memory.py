"""What loading and running a model takes of the machine's memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from narrows import LLM, SamplingParams
llm = LLM(sys.argv[1], num_threads=2, max_model_len=2048, cache=sys.argv[2] == "warm", progress=False)
llm.generate("word " * 1000, SamplingParams(temperature=0, max_tokens=4))
kv = llm.loaded.model.num_pages * 64 * llm.loaded.model.kv_bytes_per_token
lines = open("/proc/self/status").read().splitlines()
print(kv, next(int(x.split()[1]) << 10 for x in lines if x.startswith("VmHWM")))
"""


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_peak_is_the_file_the_cache_and_little_more(start: str, smollm2_path: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    command = [sys.executable, "-c", CODE, str(smollm2_path), start]
    kv, peak = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert peak < 1.1 * smollm2_path.stat().st_size + kv + 300e6
