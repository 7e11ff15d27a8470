"""The service around a model: cost of a token, start, cached prefixes, memory."""
