"""Where guesses about the next tokens come from."""

# name -> "module:Class"
DRAFTERS = {
    "ngram": "narrows.drafters.ngram:NGram",
    "model": "narrows.drafters.model:DraftModel",
    "looped": "narrows.drafters.looped:Looped",
    "first": "narrows.drafters.first:First",  # written a|b
}
