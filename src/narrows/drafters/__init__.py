"""Where guesses about the next tokens come from."""

# name -> "module:Class"
DRAFTERS = {
    "ngram": "narrows.drafters.ngram:NGram",
    "model": "narrows.drafters.model:DraftModel",
    "head": "narrows.drafters.head:Head",
    "self": "narrows.drafters.own:Own",
    "looped": "narrows.drafters.looped:Looped",
    "first": "narrows.drafters.first:First",  # written a|b
}
