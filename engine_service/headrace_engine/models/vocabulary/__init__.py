"""Building tokenizers from a model's files with the tokenizers library."""
