"""Complete some prompts, all in one batch."""

from narrows import LLM, SamplingParams

llm = LLM("smollm2")
prompts = ["The capital of France is", "Water boils at", "The three primary colours are"]
for prompt, output in zip(prompts, llm.generate(prompts, SamplingParams(temperature=0, max_tokens=24)), strict=True):
    print(f"{prompt}|{output.outputs[0].text}\n")
