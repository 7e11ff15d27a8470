"""The blocks of keys and values: who holds which, and what they contain."""
