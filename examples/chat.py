"""Stream one answer of a chat as it is written."""

from narrows import LLM, SamplingParams

llm = LLM("smollm2")
messages = [{"role": "user", "content": "Why is the sky blue? Answer in two sentences."}]
for delta in llm.stream(messages, SamplingParams(temperature=0, max_tokens=100)):
    print(delta, end="", flush=True)
print()
