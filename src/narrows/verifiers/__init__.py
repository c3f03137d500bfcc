"""Which tokens to keep, given logits and a draft."""

# name -> "module:Class"
VERIFIERS = {"greedy": "narrows.verifiers.greedy:Greedy"}
