"""Measurements of what requests cost each other: long prompts, guided decoding, and other step schedulers."""
