"""Which tokens to keep, given logits and a draft."""

# name -> "module:Class"
VERIFIERS = {
    "greedy": "narrows.verifiers.greedy:Greedy",
    "rejection": "narrows.verifiers.rejection:Rejection",
    "typical": "narrows.verifiers.typical:Typical",
}
