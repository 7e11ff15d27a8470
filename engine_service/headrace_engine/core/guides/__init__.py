"""Grammars of response formats, compiled beside the steps."""
