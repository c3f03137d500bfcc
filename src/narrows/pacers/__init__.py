"""How many tokens to draft."""

# name -> "module:Class"
PACERS = {
    "goodput": "narrows.pacers.goodput:Goodput",
    "fixed": "narrows.pacers.fixed:Fixed",
}
