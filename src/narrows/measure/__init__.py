"""Measuring: what the machine can do, and how close decoding comes to it."""
