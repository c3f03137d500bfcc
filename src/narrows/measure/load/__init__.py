"""`narrows bench serve`: load on a server as its users would make it, and what they would see of it."""
