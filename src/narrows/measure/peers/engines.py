"""Speeds of one engine in the Python that has it, as one JSON line per case. It imports nothing of ours but Narrows.

`narrows bench peers` starts this file as a program of its own. Decoding is what comes after the first token, by the
engine's own clock where it has one; a prefill is the whole call for one token.

    python engines.py openvino model.gguf '[{"name": "decode-0", "context": 0, "batch": 1, "steps": 64}]' 2 3 '{}'
    python engines.py --version openvino-genai
"""

# pyright: reportMissingImports=false
# Each engine is there only in the Python that runs it.

import importlib.metadata
import json
import os
import random
import sys
import time

VOCAB = 30_000  # prompts are random ids below this: the engines' prefix caches find nothing

# An engine is made of (model, threads, longest sequence, most requests, options) and gives a description of what it
# runs, and a function of prompts of equal length and a number of new tokens that returns how many each request got,
# and the seconds from the first tokens to the last.


def narrows(model, threads, max_len, max_batch, options):
    from narrows import LLM, SamplingParams

    llm = LLM(model, options.get("stack"), num_threads=threads, progress=False)

    def generate(prompts, count):
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        results = llm.generate(prompts, params)
        first, last = (max(getattr(r.metrics, at) for r in results) for at in ("first_token", "last_token"))
        return [len(result.outputs[0].token_ids) for result in results], last - first

    return "the file" if llm.stack.lossless else str(llm.stack), generate


def vllm(model, threads, max_len, max_batch, options):
    os.environ.update(
        VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}",
        VLLM_CPU_NUM_OF_RESERVED_CPU="0",
        VLLM_CPU_KVCACHE_SPACE="3",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        HF_HUB_OFFLINE="1",
    )
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

    def generate(prompts, count):
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        results = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        first, last = (max(getattr(r.metrics, at) for r in results) for at in ("first_token_ts", "last_token_ts"))
        return [len(result.outputs[0].token_ids) for result in results], last - first

    return "bfloat16 safetensors", generate


def openvino(model, threads, max_len, max_batch, options):
    import numpy as np
    from openvino import Tensor
    from openvino_genai import GenerationConfig, LLMPipeline, TokenizedInputs

    pipeline = LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, ENABLE_CPU_PINNING=True)

    def generate(prompts, count):
        ids = np.array(prompts, np.int64)
        config = GenerationConfig(max_new_tokens=count, min_new_tokens=count, ignore_eos=True, do_sample=False)
        results = pipeline.generate(TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids))), config)
        times = results.perf_metrics
        decoding = times.get_generate_duration().mean - times.get_ttft().mean  # milliseconds
        return [len(tokens) for tokens in results.tokens], decoding / 1e3

    return "the file" if os.path.isfile(model) else "a converted model", generate


def transformers(model, threads, max_len, max_batch, options):
    os.environ.update(OMP_NUM_THREADS=str(threads), HF_HUB_OFFLINE="1")
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    torch.set_num_threads(threads)
    folder, file = os.path.split(model) if os.path.isfile(model) else (model, None)
    source = {"gguf_file": file} if file else {}
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa", **source)
    net.eval()

    @torch.inference_mode()
    def generate(prompts, count):
        cache = DynamicCache(config=net.config)

        def step(ids):
            return net(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1:].argmax(-1)

        ids = torch.tensor(prompts)
        *before, last = ids.split(512, dim=1)
        for piece in before:
            step(piece)
        chosen = step(last)
        first = time.perf_counter()
        for _ in range(count - 1):
            chosen = step(chosen)
        return [count] * len(prompts), time.perf_counter() - first

    return "bfloat16, from the file" if file else "bfloat16 safetensors", generate


def llamacpp(model, threads, max_len, max_batch, options):
    import llama_cpp
    import numpy as np

    flash = bool(options.get("flash_attention"))
    # Room for several sequences is no setting of the package's own class: its context is made by hand.
    llama_cpp.llama_backend_init()
    net = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
    if not net:
        raise RuntimeError("llama.cpp cannot load the file")
    asked = llama_cpp.llama_context_default_params()
    asked.n_ctx, asked.n_seq_max = -(-max_len // 256) * 256 * max_batch, max_batch
    asked.n_batch = asked.n_ubatch = 512
    asked.n_threads = asked.n_threads_batch = threads
    if hasattr(asked, "flash_attn_type"):
        asked.flash_attn_type = int(flash)  # -1 would choose by itself
    else:  # older versions
        asked.flash_attn = flash
    context = llama_cpp.llama_init_from_model(net, asked)
    if not context:
        raise RuntimeError("llama.cpp cannot make a context of this size")
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(net))
    batch = llama_cpp.llama_batch_init(512, 0, 1)

    def read(rows):
        """Rows of (token, position, sequence, whether its logits are wanted)."""
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("llama.cpp failed to decode")

    def likeliest(i):
        return int(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i), (vocab,)).argmax())

    def generate(prompts, count):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        chosen = []
        for sequence, prompt in enumerate(prompts):
            rows = [(token, at, sequence, at == len(prompt) - 1) for at, token in enumerate(prompt)]
            for start in range(0, len(rows), 512):
                read(rows[start : start + 512])
            chosen.append(likeliest((len(rows) - 1) % 512))
        first, length = time.perf_counter(), len(prompts[0])
        for step in range(count - 1):
            read([(token, length + step, sequence, True) for sequence, token in enumerate(chosen)])
            chosen = [likeliest(i) for i in range(len(chosen))]
        return [count] * len(prompts), time.perf_counter() - first

    return f"the file, flash attention {'on' if flash else 'off'}", generate


ENGINES = {
    "narrows": narrows,
    "llamacpp": llamacpp,
    "openvino": openvino,
    "transformers": transformers,
    "vllm": vllm,
}


def main(engine, model, cases, threads, repeats, options):
    asked = json.loads(cases)
    longest, widest = max(c["context"] + c["steps"] for c in asked), max(c["batch"] for c in asked)
    weights, generate = ENGINES[engine](model, int(threads), longest + 64, widest, json.loads(options))
    rng = random.Random(0)

    def rate(case, steps):
        prompts = [[rng.randrange(3, VOCAB) for _ in range(max(case["context"], 1))] for _ in range(case["batch"])]
        start = time.perf_counter()
        produced, decoding = generate(prompts, steps + 1)
        elapsed = time.perf_counter() - start
        if produced != [steps + 1] * case["batch"]:
            raise RuntimeError(f"{engine} produced {produced} tokens; {steps + 1} were asked of each request")
        return case["batch"] * steps / decoding if steps else case["context"] / elapsed

    for case in asked:
        rate(case, min(case["steps"], 4))
        row = {"case": case["name"], "rates": [rate(case, case["steps"]) for _ in range(int(repeats))]}
        print(json.dumps({**row, "weights": weights}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--version":
        print(importlib.metadata.version(sys.argv[2]))
    else:
        main(*sys.argv[1:])
