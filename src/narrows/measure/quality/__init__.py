"""The quality suite: measures by name."""

MEASURES = {
    "ppl": "narrows.measure.quality.text:Perplexity",
    "kl": "narrows.measure.quality.text:Divergence",
    "drift": "narrows.measure.quality.drift:Drift",
    "humaneval": "narrows.measure.quality.code:HumanEval",
    "mbpp": "narrows.measure.quality.code:Mbpp",
    "gsm8k": "narrows.measure.quality.math:Gsm8k",
    "needle": "narrows.measure.quality.needle:Needle",
}
