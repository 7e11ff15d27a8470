"""Tiny models, damaged files, templates and vocabularies."""
