"""Training of parts that are learned. What is here but the command line and the records needs torch."""
