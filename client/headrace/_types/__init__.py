"""Data types that calls return, public through `headrace.types` and `headrace.model_types`."""
